// Device, managed and host memory.
#include <sys/mman.h>

#include <cstring>

#include "addresses.hpp"
#include "allocations.hpp"
#include "capture.hpp"

using namespace gemlet::sim;

namespace {

void add_range(uintptr_t base, uint64_t bytes, Place place, unsigned flags) {
    CUcontext context = owner_of(require_context());
    Range range;
    range.base = base;
    range.bytes = bytes;
    range.place = place;
    range.device = static_cast<int>(context->device->index());
    range.context = context;
    range.flags = flags;
    Addresses::get().add(std::move(range));
}

uintptr_t map_host(uint64_t bytes) {
    check(bytes > 0);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    return reinterpret_cast<uintptr_t>(mapped);
}

CUresult allocate(const char* name, CUdeviceptr* address, size_t bytes) {
    return api(name, [&] {
        check(address != nullptr);
        CUcontext context = require_context();
        forbid_during_capture();
        *address = allocate_device(context, bytes);
    });
}

CUresult release(const char* name, CUdeviceptr address) {
    return api(name, [&] {
        if (address == 0) return;
        CUcontext context = require_context();
        forbid_during_capture();
        const auto range = Addresses::get().find(address);
        check(range && range->base == address);
        synchronize_context(range->context != nullptr ? static_cast<CUcontext>(range->context) : context);
        switch (range->place) {
            case Place::kDevice:
                free_device(address);
                break;
            case Place::kPooled:
                free_pooled(address);
                break;
            case Place::kManaged:
                free_managed(*Addresses::get().remove(address));
                break;
            default:
                fail(CUDA_ERROR_INVALID_VALUE);
        }
    });
}

CUresult host_allocate(const char* name, void** address, size_t bytes, unsigned flags) {
    return api(name, [&] {
        check(address != nullptr && (flags & ~7u) == 0);
        require_context();
        forbid_during_capture();
        const uintptr_t base = map_host(bytes);
        add_range(base, bytes, Place::kHost, flags);
        *address = reinterpret_cast<void*>(base);
    });
}

CUresult host_register(const char* name, void* address, size_t bytes, unsigned flags) {
    return api(name, [&] {
        check(address != nullptr && bytes > 0);
        require_context();
        forbid_during_capture();
        const auto known = Addresses::get().find(reinterpret_cast<uintptr_t>(address));
        check(!known, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        add_range(reinterpret_cast<uintptr_t>(address), bytes, Place::kRegistered, flags);
    });
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    return api(__func__, [&] {
        Device& device = *require_context()->device;
        const uint64_t capacity = device.profile().capacity;
        const uint64_t used = device.memory_in_use();
        if (free != nullptr) *free = capacity - std::min(used, capacity);
        if (total != nullptr) *total = capacity;
    });
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    return allocate(__func__, address, bytes);
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    return release(__func__, address);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element) {
    return api(__func__, [&] {
        check(address != nullptr && pitch != nullptr && width > 0 && height > 0);
        check(element == 4 || element == 8 || element == 16);
        CUcontext context = require_context();
        forbid_during_capture();
        *pitch = (width + 511) / 512 * 512;
        *address = allocate_device(context, *pitch * height);
    });
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
    return api(__func__, [&] {
        check(address != nullptr);
        check(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
        require_context();
        forbid_during_capture();
        const uintptr_t base = map_host(bytes);
        add_range(base, bytes, Place::kManaged, flags);
        *address = base;
    });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    return api(__func__, [&] {
        const auto range = Addresses::get().find(address);
        check(range && range->on_device(), CUDA_ERROR_NOT_FOUND);
        if (base != nullptr) *base = range->base;
        if (bytes != nullptr) *bytes = range->bytes;
    });
}

CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
    return host_allocate(__func__, address, bytes, 0);
}
CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
    return host_allocate(__func__, address, bytes, flags);
}

CUresult cuMemFreeHost(void* address) {
    return api(__func__, [&] {
        if (address == nullptr) return;
        const auto range = Addresses::get().find(reinterpret_cast<uintptr_t>(address));
        check(range && range->base == reinterpret_cast<uintptr_t>(address) && range->place == Place::kHost);
        forbid_during_capture();
        synchronize_context(require_context());
        Addresses::get().remove(range->base);
        munmap(address, range->bytes);
    });
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
    return host_register(__func__, address, bytes, flags);
}

CUresult cuMemHostUnregister(void* address) {
    return api(__func__, [&] {
        const auto range = Addresses::get().find(reinterpret_cast<uintptr_t>(address));
        check(range && range->base == reinterpret_cast<uintptr_t>(address) && range->place == Place::kRegistered,
              CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        synchronize_context(require_context());
        Addresses::get().remove(range->base);
    });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned flags) {
    return api(__func__, [&] {
        check(address != nullptr && flags == 0);
        check(Addresses::get().find(reinterpret_cast<uintptr_t>(host)).has_value());
        *address = reinterpret_cast<CUdeviceptr>(host);  // one address space
    });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
    return api(__func__, [&] {
        check(flags != nullptr);
        const auto range = Addresses::get().find(reinterpret_cast<uintptr_t>(host));
        check(range && !range->on_device());
        *flags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    });
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    return api(__func__, [&] {
        submit(stream, EmptyStep{});
        populate_managed(address, bytes, device);
    });
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned, CUstream stream) {
    return api(__func__, [&] {
        submit(stream, EmptyStep{});
        populate_managed(address, bytes, to.type == CU_MEM_LOCATION_TYPE_DEVICE ? to.id : CU_DEVICE_CPU);
    });
}
CUresult cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice) {
    return api(__func__, [] { require_context(); });
}
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation) {
    return api(__func__, [] { require_context(); });
}

}  // extern "C"
