// Device memory of the program, whichever call asked for it.
#pragma once

#include "addresses.hpp"
#include "handles.hpp"

namespace gemlet::sim {

CUdeviceptr allocate_device(CUcontext context, uint64_t bytes);  // or CUDA_ERROR_OUT_OF_MEMORY
void free_device(CUdeviceptr address);
// Managed memory takes room on the device only where it was prefetched as a whole; it is never evicted by itself.
void populate_managed(CUdeviceptr address, uint64_t bytes, CUdevice device);
void free_managed(const Range& range);  // which is no longer in Addresses
void free_pooled(CUdeviceptr address);  // memory from a stream-ordered pool, at once (driver_memory_pool.cpp)
void pools_synchronized();              // the program waited for a stream: pools shrink to their thresholds
Heap& device_heap(Device& device);

}  // namespace gemlet::sim
