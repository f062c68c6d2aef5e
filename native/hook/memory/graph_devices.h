// Which devices a graph works on: each of them is shared.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// When something was instantiated as `handle` of `graph`: what submit/launch.h asks for.
void remember_devices(const void* handle, CUgraph graph);
void forget_devices();  // in a forked child

}  // namespace gemlet::hook
