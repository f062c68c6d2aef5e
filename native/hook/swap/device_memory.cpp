// The driver's memory behind chunks, and its accounting.
#include "hook/lookup/own_calls.h"
#include "hook/swap/space.h"

namespace gemlet::hook {

CUresult DeviceMemory::create(uint64_t bytes, CUmemGenericAllocationHandle& handle) {
    if (properties_) {
        const CUresult result = own().cuMemCreate(&handle, bytes, properties_, 0);
        if (strict_ || result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) return result;
    }
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    return own().cuMemCreate(&handle, bytes, &properties, 0);
}
CUresult DeviceMemory::map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) {
    return own().cuMemMap(address, bytes, 0, handle, 0);
}
CUresult DeviceMemory::allow(CUdeviceptr address, uint64_t bytes) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return own().cuMemSetAccess(address, bytes, &access, 1);
}
CUresult DeviceMemory::map_view(const ChunkView& view, CUmemGenericAllocationHandle handle) {
    return own().cuMemMap(view.address, view.bytes, view.offset, handle, 0);
}
CUresult DeviceMemory::allow_view(const ChunkView& view) {
    if (view.access->empty()) return CUDA_SUCCESS;
    return own().cuMemSetAccess(view.address, view.bytes, view.access->data(), view.access->size());
}
CUresult DeviceMemory::unmap(CUdeviceptr address, uint64_t bytes) {
    return own().cuMemUnmap(address, bytes);
}
CUresult DeviceMemory::release(CUmemGenericAllocationHandle handle) {
    return own().cuMemRelease(handle);
}

// The accounting counts memory before it is on the device, and until it is gone.
CUresult bring(SwapSpace& space, Chunk& chunk, bool strict) {
    const bool had = chunk.has_handle;
    if (!had) {
        space.mapped += chunk.bytes;
        space.page.load()->mapped.store(space.mapped);
    }
    DeviceMemory driver(space.device.ordinal, chunk, strict);
    CUresult result = chunk.prepare(driver);
    if (!chunk.has_handle) space.mapped -= chunk.bytes;
    return result;
}

CUresult vacate(SwapSpace& space, Chunk& chunk) {
    const bool had = chunk.has_handle;
    DeviceMemory driver(space.device.ordinal, chunk, false);
    CUresult result = chunk.vacate(driver);
    if (had && !chunk.has_handle && !chunk.stays) space.mapped -= chunk.bytes;
    return result;
}
}  // namespace gemlet::hook
