// Virtual memory management: addresses, physical memory, and which of it is where.
//
// Physical memory is pages of a file and mapping is mmap, so an address without memory, or without access, faults as
// it would on the card.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "addresses.hpp"
#include "capture.hpp"

using namespace gemlet::sim;

namespace {

struct Physical {
    std::shared_ptr<Backing> backing;
    CUmemAllocationProp properties;
    Device* device;  // null: host memory, or another process pays
    uint64_t bytes;
    int references = 0;  // handles and mappings; the memory is charged until the last is gone
};

std::mutex mutex;
std::map<CUmemGenericAllocationHandle, Physical>& physicals() {
    static auto* all = new std::map<CUmemGenericAllocationHandle, Physical>;
    return *all;
}
std::atomic<CUmemGenericAllocationHandle> next_handle{1};

uint64_t granularity() {
    return devices().front()->profile().granularity;
}

Physical& find(CUmemGenericAllocationHandle handle) {
    const auto found = physicals().find(handle);
    check(found != physicals().end());
    return found->second;
}

void drop(CUmemGenericAllocationHandle handle) {
    Physical& physical = find(handle);
    if (--physical.references > 0) return;
    if (physical.device != nullptr) physical.device->release(physical.bytes);
    physicals().erase(handle);
}

CUmemGenericAllocationHandle handle_of(const Range& range) {
    return reinterpret_cast<CUmemGenericAllocationHandle>(range.owner);
}

// The chunks that make up [address, address + bytes) exactly.
std::vector<Range> chunks(CUdeviceptr address, size_t bytes) {
    std::vector<Range> found;
    for (CUdeviceptr at = address; at < address + bytes;) {
        const auto range = Addresses::get().find(at);
        check(range && range->place == Place::kMapped && range->base == at);
        at += range->bytes;
        check(at <= address + bytes);
        found.push_back(*range);
    }
    return found;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
    return api(__func__, [&] {
        check(bytes != nullptr && properties != nullptr);
        *bytes = granularity();
    });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
    return api(__func__, [&] {
        check(address != nullptr && bytes > 0 && flags == 0 && bytes % granularity() == 0);
        check((alignment & (alignment - 1)) == 0);
        const uintptr_t base = reserve_addresses(wish, bytes, std::max<uint64_t>(alignment, granularity()));
        check(base != 0, CUDA_ERROR_OUT_OF_MEMORY);
        Addresses::get().add_reservation(base, bytes);
        *address = base;
    });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return api(__func__, [&] {
        check(Addresses::get().remove_reservation(address, bytes));
        forget_addresses(address, bytes);
    });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
    return api(__func__, [&] {
        check(handle != nullptr && properties != nullptr && flags == 0);
        check(bytes > 0 && bytes % granularity() == 0);
        check(properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
        const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        check(on_device || properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
              properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
              properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
        const auto types = static_cast<unsigned>(properties->requestedHandleTypes);
        check((types & ~static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) == 0,
              CUDA_ERROR_NOT_SUPPORTED);
        Physical made{
            .backing = nullptr, .properties = *properties, .device = nullptr, .bytes = bytes, .references = 1};
        if (on_device) {
            made.device = &device_of(properties->location.id);
            check(made.device->reserve(bytes), CUDA_ERROR_OUT_OF_MEMORY);
        }
        made.backing = types != 0 ? Backing::in_own_file(bytes) : Backing::in_arena(bytes);
        if (!made.backing) {
            if (made.device != nullptr) made.device->release(bytes);
            fail(CUDA_ERROR_OUT_OF_MEMORY);
        }
        *handle = next_handle++;
        const std::lock_guard guard(mutex);
        physicals()[*handle] = std::move(made);
    });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return api(__func__, [&] {
        const std::lock_guard guard(mutex);
        drop(handle);
    });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    return api(__func__, [&] {
        const std::lock_guard guard(mutex);
        Physical& physical = find(handle);
        check(flags == 0 && bytes > 0 && offset == 0 && bytes % granularity() == 0 && bytes <= physical.bytes);
        check(Addresses::get().reserved(address, bytes));
        for (CUdeviceptr at = address; at < address + bytes; at += granularity()) check(!Addresses::get().find(at));
        // Mapped, but nobody has access yet.
        check(physical.backing->map(address, offset, bytes, false) != 0, CUDA_ERROR_OUT_OF_MEMORY);
        ++physical.references;
        Range range;
        range.base = address;
        range.bytes = bytes;
        range.place = Place::kMapped;
        range.device =
            physical.device != nullptr ? static_cast<int>(physical.device->index()) : physical.properties.location.id;
        range.owner = reinterpret_cast<void*>(handle);
        range.accessible = false;
        range.flags = static_cast<unsigned>(physical.properties.requestedHandleTypes);
        Addresses::get().add(std::move(range));
    });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return api(__func__, [&] {
        const std::lock_guard guard(mutex);
        for (const Range& chunk : chunks(address, bytes)) {
            Addresses::get().remove(chunk.base);
            unmap_to_reserved(chunk.base, chunk.bytes);
            drop(handle_of(chunk));
        }
    });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
    return api(__func__, [&] {
        check(access != nullptr && count > 0);
        const std::lock_guard guard(mutex);
        const auto all = chunks(address, bytes);
        for (size_t i = 0; i < count; ++i) {
            // Write protection and other devices' view are not modelled: one process, one page table.
            if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) device_of(access[i].location.id);
            const bool accessible = access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
            for (const Range& chunk : all) {
                const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
                check(mprotect(reinterpret_cast<void*>(chunk.base), chunk.bytes, protection) == 0,
                      CUDA_ERROR_OUT_OF_MEMORY);
                Addresses::get().set_accessible(chunk.base, accessible);
            }
        }
    });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    return api(__func__, [&] {
        check(flags != nullptr && location != nullptr);
        const auto range = Addresses::get().find(address);
        check(range && range->place == Place::kMapped);
        *flags = range->accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
    return api(__func__, [&] {
        check(properties != nullptr);
        const std::lock_guard guard(mutex);
        *properties = find(handle).properties;
    });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    return api(__func__, [&] {
        check(handle != nullptr);
        const auto range = Addresses::get().find(reinterpret_cast<uintptr_t>(address));
        check(range && range->place == Place::kMapped);
        const std::lock_guard guard(mutex);
        ++find(handle_of(*range)).references;
        *handle = handle_of(*range);
    });
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
    return api(__func__, [&] {
        check(out != nullptr && flags == 0);
        const std::lock_guard guard(mutex);
        const Physical& physical = find(handle);
        check(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
              (static_cast<unsigned>(physical.properties.requestedHandleTypes) & type) != 0);
        const int fd = fcntl(physical.backing->fd(), F_DUPFD_CLOEXEC, 0);
        check(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
        *static_cast<int*>(out) = fd;
    });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
    return api(__func__, [&] {
        check(handle != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        const int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
        check(fd >= 0);
        struct stat info{};
        fstat(fd, &info);
        // The process that created the memory pays for it.
        Physical made{.backing = nullptr,
                      .properties = {},
                      .device = nullptr,
                      .bytes = static_cast<uint64_t>(info.st_size),
                      .references = 1};
        made.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        made.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        made.properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        made.backing = Backing::from_descriptor(fd, 0, made.bytes);
        *handle = next_handle++;
        const std::lock_guard guard(mutex);
        physicals()[*handle] = std::move(made);
    });
}

}  // extern "C"
