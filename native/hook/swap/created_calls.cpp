// Programs' calls about access to memory of cuMemCreate, its properties and its addresses: the driver answers, but
// for memory that moves, and may be away.
#include "hook/lookup/driver.h"
#include "hook/memory/movable.h"

using namespace gemlet::hook;

extern "C" {

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
    if (swap_active() && access)
        if (const auto done = swap_set_access(address, bytes, access, count)) return *done;
    return real::cuMemSetAccess(address, bytes, access, count);
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    if (swap_active() && flags && location)
        if (const auto known = swap_access(address, *location)) {
            *flags = *known;
            return CUDA_SUCCESS;
        }
    return real::cuMemGetAccess(flags, location, address);
}

// The driver would free the addresses of memory that is away just now.
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    if (swap_active() && swap_is_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return real::cuMemAddressFree(address, bytes);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
    if (swap_active() && properties)
        if (const auto known = swap_properties(handle)) {
            *properties = *known;
            return CUDA_SUCCESS;
        }
    return real::cuMemGetAllocationPropertiesFromHandle(properties, handle);
}

}  // extern "C"
