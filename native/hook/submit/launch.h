// What launches tell the room above.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// After a graph with allocation nodes was instantiated or launched: what graphs hold is read from the driver anew
// (memory/graph.cpp).
void graph_memory_changed(CUdevice device);

}  // namespace gemlet::hook
