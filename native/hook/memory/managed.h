// Managed memory where the program asks for device memory (`gemlet run --managed`): Gemini_UM's way to use more than
// there is, for comparison.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// True if cuMemAlloc of this process takes managed memory.
bool managed_in_place();

// Memory that pages can leave. Unless it was forced, no more than the device has free, and it is there at once, so
// that what is free is the truth for the next one who asks, in whatever process: page faults beyond the device are
// slow at best, and some drivers do not come out of them.
CUresult allocate_managed(CUdeviceptr* pointer, size_t bytes);

}  // namespace gemlet::hook
