// Managed memory where the program asks for device memory (`gemlet run --managed`): Gemini_UM's way to use more than
// there is, for comparison.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// True if cuMemAlloc of this process takes managed memory.
bool managed_in_place();

// Allocates memory that pages can leave. Unless it was forced, it takes no more than the device has free, and
// brings the memory to the device at once, so that the free memory is right for the next caller in any process:
// page faults beyond the device are slow at best, and some drivers do not recover from them.
CUresult allocate_managed(CUdeviceptr* pointer, size_t bytes);

}  // namespace gemlet::hook
