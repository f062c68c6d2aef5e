// Device memory of the program, whichever call asked for it.
#pragma once

#include "handles.hpp"

namespace gemlet::sim {

CUdeviceptr allocate_device(CUcontext context, uint64_t bytes);  // or CUDA_ERROR_OUT_OF_MEMORY
void free_device(CUdeviceptr address);
void free_pooled(CUdeviceptr address);  // memory from a stream-ordered pool, at once (driver_memory_pool.cpp)
void pools_synchronized();              // the program waited for a stream: pools shrink to their thresholds
Heap& device_heap(Device& device);

}  // namespace gemlet::sim
