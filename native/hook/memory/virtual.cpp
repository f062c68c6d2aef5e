// Virtual memory management: physical memory made by cuMemCreate lives until its handles are released *and* its
// mappings are gone, in whatever order.
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <vector>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/location.h"
#include "hook/memory/movable.h"
#include "hook/memory/size.h"
#include "hook/memory/virtual.h"
#include "hook/submit/current_context.h"
#include "hook/submit/device.h"

namespace gemlet::hook {

namespace {

using Handle = CUmemGenericAllocationHandle;

struct Physical {
    uint64_t bytes;
    CUdevice device;
    int references = 0;     // handles, mappings, bindings, arrays that it is mapped into
    bool exported = false;  // a descriptor holds on to it, nobody can tell how long: charged until this process ends
};

struct HeldHandle {
    Physical* physical;
    int references;
};

struct Mapping {
    Physical* physical;
    uint64_t bytes;
};

// What a multicast object or a logical endpoint holds on to, from an offset on.
struct Binding {
    uint64_t object;
    CUdevice device;  // -1: any
    uint64_t offset;
    Physical* physical;
};

// One lock is enough: these calls take the driver tens of microseconds.
struct VirtualMemory {
    std::mutex mutex;
    std::unordered_map<Handle, HeldHandle> handles;
    std::map<CUdeviceptr, Mapping> mappings;
    std::vector<Binding> bindings;
    std::unordered_map<uint64_t, std::set<Physical*>> arrays;  // by sparse array: what was ever mapped into it
};

VirtualMemory& memory() {
    static auto* all = new VirtualMemory;
    return *all;
}

void refer(Physical* physical) {
    ++physical->references;
}

void drop(Physical* physical) {
    if (--physical->references > 0 || physical->exported) return;
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

Physical* physical_of(Handle handle) {
    auto found = memory().handles.find(handle);
    return found == memory().handles.end() ? nullptr : found->second.physical;
}

// Another process's memory that is on the calling thread's device. On another one its maker alone pays.
bool is_here(Handle handle, CUmemAllocationProp& properties) {
    const auto get = own().cuMemGetAllocationPropertiesFromHandle;
    const CUdevice device = current_device();
    return device >= 0 && get && get(&properties, handle) == CUDA_SUCCESS && device_at(properties.location) == device;
}

// How much an imported handle holds on to. The driver tells nobody, but no more of it can be mapped. 0: not known.
uint64_t most_that_can_be_mapped(Handle handle, const CUmemAllocationProp& properties) {
    const auto& d = own();
    size_t unit = 0, total = 0;
    CUdeviceptr at = 0;
    if (!d.cuMemAddressReserve || !d.cuMemAddressFree || !d.cuMemGetAllocationGranularity ||
        d.cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        unit == 0 || real::cuDeviceTotalMem_v2(&total, device_at(properties.location)) != CUDA_SUCCESS ||
        d.cuMemAddressReserve(&at, round_up(total, unit), 0, 0, 0) != CUDA_SUCCESS)
        return 0;
    uint64_t fits = 0;
    for (uint64_t most = round_up(total, unit) / unit; fits < most;) {
        const uint64_t middle = (fits + most + 1) / 2;
        if (real::cuMemMap(at, middle * unit, 0, handle, 0) == CUDA_SUCCESS) {
            fits = middle;
            if (real::cuMemUnmap(at, middle * unit) != CUDA_SUCCESS) return fits * unit;  // the addresses are lost
        } else {
            most = middle - 1;
        }
    }
    d.cuMemAddressFree(at, round_up(total, unit));
    return fits * unit;
}

// The handle of another process's memory, for which the process that holds on to it pays, too: its maker may end.
// False: over the limit.
bool adopt(Handle handle, CUdevice device, uint64_t bytes) {
    if (bytes == 0 || bytes >= kAbsurd) return true;
    if (!charge(device, bytes)) return false;
    std::lock_guard lock(memory().mutex);
    if (physical_of(handle))
        give_back(device, bytes);  // another thread was faster
    else
        add_handle(handle, new Physical{.bytes = bytes, .device = device});
    return true;
}

// What backs movable memory is the hook's: to the program it is memory of cuMemAlloc, which has no handle. One would
// hold on to physical memory that is soon somebody else's. What the program mapped by itself stays from now on.
CUresult give_handle(CUdeviceptr address, uint64_t bytes) {
    if (!swap_active()) return CUDA_SUCCESS;
    const auto range = swap_find(address);
    if (range && !range->created) return CUDA_ERROR_INVALID_VALUE;
    return range ? swap_pin_range(address, bytes) : CUDA_SUCCESS;
}

// In place of a handle of the program's the driver's.
CUresult give_handle(Handle& handle) {
    return swap_active() ? swap_pin(handle) : CUDA_SUCCESS;
}

template <class Find, class Call>
CUresult bind(uint64_t object, CUdevice device, uint64_t offset, Find&& find, Call&& call) {
    Physical* physical;
    {
        std::lock_guard lock(memory().mutex);
        if ((physical = find())) refer(physical);
    }
    CUresult result = call();
    if (!physical) return result;
    std::lock_guard lock(memory().mutex);
    if (result == CUDA_SUCCESS)
        memory().bindings.push_back({object, device, offset, physical});
    else
        drop(physical);
    return result;
}

void unbind(uint64_t object, CUdevice device, uint64_t offset, uint64_t bytes) {
    std::lock_guard lock(memory().mutex);
    std::erase_if(memory().bindings, [=](const Binding& b) {
        const bool meant = b.object == object && (b.device < 0 || b.device == device) && b.offset >= offset &&
                           b.offset - offset < bytes;
        if (meant) drop(b.physical);
        return meant;
    });
}

// What a later operation replaces stays charged until the array goes.
template <class Call>
CUresult map_into_arrays(CUarrayMapInfo* list, unsigned int count, Call&& call) {
    std::vector<CUarrayMapInfo> named;  // as the driver knows what is mapped
    if (swap_active() && list) {
        named.assign(list, list + count);
        for (CUarrayMapInfo& one : named) {
            if (one.memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
            if (CUresult refused = swap_pin(one.memHandle.memHandle)) return refused;
        }
    }
    {
        std::lock_guard lock(memory().mutex);
        for (unsigned int i = 0; list && i < count; ++i) {
            if (list[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
            Physical* physical = physical_of(list[i].memHandle.memHandle);
            const auto array = reinterpret_cast<uint64_t>(list[i].resource.array);
            if (physical && memory().arrays[array].insert(physical).second) refer(physical);
        }
    }
    return call(named.empty() ? list : named.data());
}

std::vector<std::pair<CUdeviceptr, Mapping>> take_mappings(CUdeviceptr start, size_t size) {
    std::vector<std::pair<CUdeviceptr, Mapping>> taken;
    auto& mappings = memory().mappings;
    for (auto m = mappings.lower_bound(start); m != mappings.end() && m->first - start < size; m = mappings.erase(m))
        taken.push_back(*m);
    return taken;
}

CUresult unmap(CUdeviceptr address, size_t size) {
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

}  // namespace

void stays_from_now_on(CUmemGenericAllocationHandle handle, uint64_t bytes, CUdevice device,
                       const std::vector<std::pair<CUdeviceptr, uint64_t>>& mapped) {
    std::lock_guard lock(memory().mutex);
    auto* physical = new Physical{.bytes = bytes, .device = device};
    if (handle) add_handle(handle, physical);
    for (const auto& [start, length] : mapped) {
        refer(physical);
        memory().mappings[start] = {physical, length};
    }
}

void array_destroyed(uint64_t array) {
    std::lock_guard lock(memory().mutex);
    auto found = memory().arrays.find(array);
    if (found == memory().arrays.end()) return;
    for (Physical* physical : found->second) drop(physical);
    memory().arrays.erase(found);
}

void forget_virtual_memory() {
    new (&memory()) VirtualMemory;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
    Reentry reentry;
    const CUdevice device = reentry.nested() || !properties ? -1 : device_at(properties->location);
    if (swap_active() && device >= 0 && flags == 0)
        if (const auto made = swap_create(handle, size, *properties)) return *made;
    if (device < 0 || size >= kAbsurd) return real::cuMemCreate(handle, size, properties, flags);
    if (!charge(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real::cuMemCreate(handle, size, properties, flags);
    if (result != CUDA_SUCCESS || !handle) {
        give_back(device, size);
        return result;
    }
    std::lock_guard lock(memory().mutex);
    add_handle(*handle, new Physical{.bytes = size, .device = device});
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (swap_active())
        if (const auto done = swap_release(handle)) return *done;
    Physical* physical;
    {
        std::lock_guard lock(memory().mutex);
        physical = take_handle(handle);
    }
    CUresult result = real::cuMemRelease(swap_active() ? swap_real(handle) : handle);
    if (result == CUDA_SUCCESS && swap_active()) swap_released(handle);
    if (!physical) return result;
    std::lock_guard lock(memory().mutex);
    if (result != CUDA_SUCCESS) add_handle(handle, physical);
    drop(physical);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    if (swap_active())
        if (const auto done = swap_map(address, size, offset, handle, flags)) return *done;
    Physical* physical = nullptr;  // stays null for memory on another device
    const auto find = [&] {
        std::lock_guard lock(memory().mutex);
        if ((physical = physical_of(handle))) refer(physical);
        return physical != nullptr;
    };
    Reentry reentry;
    CUmemAllocationProp properties{};
    if (!find() && !reentry.nested() && is_here(handle, properties)) {  // imported, and its size was not to be had
        if (!adopt(handle, device_at(properties.location), size)) return CUDA_ERROR_OUT_OF_MEMORY;
        find();
    }
    CUresult result = real::cuMemMap(address, size, offset, swap_active() ? swap_real(handle) : handle, flags);
    if (!physical) return result;
    std::lock_guard lock(memory().mutex);
    if (result == CUDA_SUCCESS)
        memory().mappings[address] = {physical, size};
    else
        drop(physical);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    if (swap_active())
        if (const auto done = swap_unmap(address, size, unmap)) return *done;
    return unmap(address, size);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    const auto at = reinterpret_cast<CUdeviceptr>(address);
    if (swap_active()) {
        if (const auto done = swap_retain(handle, at)) return *done;
        if (swap_find(at)) return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = real::cuMemRetainAllocationHandle(handle, address);
    if (result != CUDA_SUCCESS || !handle) return result;
    std::lock_guard lock(memory().mutex);
    if (Physical* physical = physical_at(at)) add_handle(*handle, physical);
    return result;
}

// What this process exported to itself may come back as one more reference to the same memory.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
    Reentry reentry;
    CUresult result = real::cuMemImportFromShareableHandle(handle, os_handle, type);
    if (result != CUDA_SUCCESS || reentry.nested() || !handle) return result;
    tied.store(1, std::memory_order_relaxed);
    {
        std::lock_guard lock(memory().mutex);
        if (Physical* physical = physical_of(*handle)) {
            add_handle(*handle, physical);
            return result;
        }
    }
    CUmemAllocationProp properties{};
    if (!is_here(*handle, properties) ||
        adopt(*handle, device_at(properties.location), most_that_can_be_mapped(*handle, properties)))
        return result;
    real::cuMemRelease(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    Handle named = handle;
    if (swap_active()) {
        const auto properties = swap_properties(handle);  // what was not made for it stays as it is
        if (properties && (properties->requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
        if (CUresult refused = give_handle(named)) return refused;
    }
    CUresult result = real::cuMemExportToShareableHandle(shareable, named, type, flags);
    if (result != CUDA_SUCCESS) return result;
    std::lock_guard lock(memory().mutex);
    if (Physical* physical = physical_of(handle)) physical->exported = true;
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle handle,
                            size_t from, size_t size, unsigned long long flags) {
    Handle named = handle;
    if (CUresult refused = give_handle(named)) return refused;
    return bind(
        object, -1, offset, [=] { return physical_of(handle); },
        [=] { return real::cuMulticastBindMem(object, offset, named, from, size, flags); });
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle handle, size_t from, size_t size,
                               unsigned long long flags) {
    Handle named = handle;
    if (CUresult refused = give_handle(named)) return refused;
    return bind(
        object, device, offset, [=] { return physical_of(handle); },
        [=] { return real::cuMulticastBindMem_v2(object, device, offset, named, from, size, flags); });
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size,
                             unsigned long long flags) {
    if (CUresult refused = give_handle(address, size)) return refused;
    return bind(
        object, -1, offset, [=] { return physical_at(address); },
        [=] { return real::cuMulticastBindAddr(object, offset, address, size, flags); });
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                CUdeviceptr address, size_t size, unsigned long long flags) {
    if (CUresult refused = give_handle(address, size)) return refused;
    return bind(
        object, device, offset, [=] { return physical_at(address); },
        [=] { return real::cuMulticastBindAddr_v2(object, device, offset, address, size, flags); });
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size) {
    CUresult result = real::cuMulticastUnbind(object, device, offset, size);
    if (result == CUDA_SUCCESS) unbind(object, device, offset, size);
    return result;
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset,
                                  CUmemGenericAllocationHandle handle, cuuint64_t from, cuuint64_t size,
                                  unsigned long long flags) {
    Handle named = handle;
    if (CUresult refused = give_handle(named)) return refused;
    return bind(
        endpoint, device, offset, [=] { return physical_of(handle); },
        [=] { return real::cuLogicalEndpointBindMem(endpoint, device, offset, named, from, size, flags); });
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset, void* address,
                                   cuuint64_t size, unsigned long long flags) {
    if (CUresult refused = give_handle(reinterpret_cast<CUdeviceptr>(address), size)) return refused;
    return bind(
        endpoint, device, offset, [=] { return physical_at(reinterpret_cast<CUdeviceptr>(address)); },
        [=] { return real::cuLogicalEndpointBindAddr(endpoint, device, offset, address, size, flags); });
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset, cuuint64_t size) {
    CUresult result = real::cuLogicalEndpointUnbind(endpoint, device, offset, size);
    if (result == CUDA_SUCCESS) unbind(endpoint, device, offset, size);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
    return map_into_arrays(list, count, [=](auto* named) { return real::cuMemMapArrayAsync(named, count, stream); });
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
    return map_into_arrays(list, count,
                           [=](auto* named) { return real::cuMemMapArrayAsync_ptsz(named, count, stream); });
}

}  // extern "C"
