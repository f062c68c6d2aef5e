// Physical memory of cuMemCreate as memory/virtual.cpp counts it.
#pragma once

#include <utility>
#include <vector>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// Memory that could move and stays on the device from now on: charged already, under a handle that the program has
// (0: none), and mapped where it says: addresses and bytes.
void stays_from_now_on(CUmemGenericAllocationHandle handle, uint64_t bytes, CUdevice device,
                       const std::vector<std::pair<CUdeviceptr, uint64_t>>& mapped);

}  // namespace gemlet::hook
