// Virtual memory management: physical memory made by cuMemCreate lives until its handles are released *and* its
// mappings are gone, in whatever order.
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "hook/lookup/driver.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/size.h"

namespace gemlet::hook {

namespace {

using Handle = CUmemGenericAllocationHandle;

struct Physical {
    uint64_t bytes;
    CUdevice device;
    int references = 0;  // handles and mappings
};

struct HeldHandle {
    Physical* physical;
    int references;
};

struct Mapping {
    Physical* physical;
    uint64_t bytes;
};

// One lock is enough: these calls take the driver tens of microseconds.
struct VirtualMemory {
    std::mutex mutex;
    std::unordered_map<Handle, HeldHandle> handles;
    std::map<CUdeviceptr, Mapping> mappings;
};

VirtualMemory& memory() {
    static auto* all = new VirtualMemory;
    return *all;
}

void refer(Physical* physical) {
    ++physical->references;
}

void drop(Physical* physical) {
    if (--physical->references > 0) return;
    give_back(physical->device, physical->bytes);
    delete physical;
}

void add_handle(Handle handle, Physical* physical) {
    refer(physical);
    auto [entry, fresh] = memory().handles.try_emplace(handle, HeldHandle{physical, 0});
    ++entry->second.references;
}

// Takes one reference out of the table without dropping it; it is dropped when the driver has agreed.
Physical* take_handle(Handle handle) {
    auto found = memory().handles.find(handle);
    if (found == memory().handles.end()) return nullptr;
    Physical* physical = found->second.physical;
    if (--found->second.references == 0) memory().handles.erase(found);
    return physical;
}

Physical* physical_at(CUdeviceptr address) {
    auto next = memory().mappings.upper_bound(address);
    if (next == memory().mappings.begin()) return nullptr;
    auto& [start, mapping] = *std::prev(next);
    return address - start < mapping.bytes ? mapping.physical : nullptr;
}

std::vector<std::pair<CUdeviceptr, Mapping>> take_mappings(CUdeviceptr start, size_t size) {
    std::vector<std::pair<CUdeviceptr, Mapping>> taken;
    auto& mappings = memory().mappings;
    for (auto m = mappings.lower_bound(start); m != mappings.end() && m->first - start < size; m = mappings.erase(m))
        taken.push_back(*m);
    return taken;
}

}  // namespace

void forget_virtual_memory() {
    new (&memory()) VirtualMemory;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
    Reentry reentry;
    const bool counted =
        !reentry.nested() && properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && size < kAbsurd;
    if (!counted) return real::cuMemCreate(handle, size, properties, flags);
    const CUdevice device = properties->location.id;
    if (!charge(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real::cuMemCreate(handle, size, properties, flags);
    if (result != CUDA_SUCCESS || !handle) {
        give_back(device, size);
        return result;
    }
    std::lock_guard lock(memory().mutex);
    add_handle(*handle, new Physical{size, device});
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    Physical* physical;
    {
        std::lock_guard lock(memory().mutex);
        physical = take_handle(handle);
    }
    CUresult result = real::cuMemRelease(handle);
    if (!physical) return result;
    std::lock_guard lock(memory().mutex);
    if (result != CUDA_SUCCESS) add_handle(handle, physical);
    drop(physical);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    Physical* physical = nullptr;  // stays null for another process's memory: its owner pays
    {
        std::lock_guard lock(memory().mutex);
        auto found = memory().handles.find(handle);
        if (found != memory().handles.end()) refer(physical = found->second.physical);
    }
    CUresult result = real::cuMemMap(address, size, offset, handle, flags);
    if (!physical) return result;
    std::lock_guard lock(memory().mutex);
    if (result == CUDA_SUCCESS)
        memory().mappings[address] = {physical, size};
    else
        drop(physical);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    std::unique_lock lock(memory().mutex);
    auto taken = take_mappings(address, size);
    lock.unlock();
    CUresult result = real::cuMemUnmap(address, size);
    if (taken.empty()) return result;
    lock.lock();
    for (auto& [start, mapping] : taken) {
        if (result == CUDA_SUCCESS)
            drop(mapping.physical);
        else
            memory().mappings[start] = mapping;
    }
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    CUresult result = real::cuMemRetainAllocationHandle(handle, address);
    if (result != CUDA_SUCCESS || !handle) return result;
    std::lock_guard lock(memory().mutex);
    if (Physical* physical = physical_at(reinterpret_cast<CUdeviceptr>(address))) add_handle(*handle, physical);
    return result;
}

// The owner of another process's memory pays for it. What this process exported to itself comes back as one more
// reference to the same memory.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
    CUresult result = real::cuMemImportFromShareableHandle(handle, os_handle, type);
    if (result != CUDA_SUCCESS || !handle) return result;
    std::lock_guard lock(memory().mutex);
    if (auto found = memory().handles.find(*handle); found != memory().handles.end())
        add_handle(*handle, found->second.physical);
    return result;
}

}  // extern "C"
