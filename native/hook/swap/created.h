// Memory that the program made by cuMemCreate and maps by itself, where it moves like any other.
//
// The hook backs it with chunks at addresses of its own, its *home*: there they are copied, whatever the program may
// do with the memory, and whether it has mapped it or not. Each mapping of the program's is a *view* of it, and goes
// and comes back with the chunks. So one handle may be mapped several times, in part, or just now not at all.
//
// The handle that the program has is the hook's, too: no handle of the driver's stands for such memory. Where one has
// to (swap/pinned.cpp), the memory stays on the device from then on, and is accounted for as what the driver made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

struct Created {
    uint64_t bytes = 0;
    std::shared_ptr<const CUmemAllocationProp> properties;
    uint64_t handles = 1;  // that the program has; 0: it has none, and what is mapped lives on
    uint64_t views = 0;
    CUdeviceptr home = 0;      // of its reservation; 0: it does not move any more
    bool ever_mapped = false;  // else there is nothing in it
    uint64_t id = 0;
    CUmemGenericAllocationHandle real = 0;  // the driver's, once it does not move any more; 0: there is none yet

    bool moves() const { return home != 0; }
    // Never one of the driver's: the table of handles says whose one is, and an address of ours is nobody else's.
    CUmemGenericAllocationHandle name() const {
        return reinterpret_cast<CUmemGenericAllocationHandle>(const_cast<Created*>(this));
    }
};

// What cuMemMap mapped.
struct View {
    CUdeviceptr start = 0;
    uint64_t bytes = 0;
    Created* created = nullptr;
    std::vector<CUmemAccessDesc> access;  // all that cuMemSetAccess asked for: nobody has access before
    uint64_t id = 0;
    bool sync_memops = false;
    // What the driver says of it as long as it is there.
    CUresult context_known = CUDA_SUCCESS;
    CUcontext context = nullptr;
    CUdeviceptr reserved = 0;  // the addresses that the program reserved around it
    uint64_t reserved_bytes = 0;
};

}  // namespace gemlet::hook
