// What the rest of the hook may ask of the memory accounting.
#pragma once

#include <cstdint>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// Bytes this process has reserved on the device for allocations it made (contexts are the daemon's to book).
uint64_t memory_held(CUdevice device);

// After a graph with allocation nodes was instantiated or launched: what graphs hold is read from the driver anew.
void graph_memory_changed(CUdevice device);

}  // namespace gemlet::hook
