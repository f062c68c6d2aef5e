// Which contexts this process has.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// True once cuInit succeeded in this process.
bool cuda_started();

// One of the device's. Null: there is none, or one comes or goes just now, and that takes a lock that others wait
// under.
CUcontext some_context(CUdevice device);

}  // namespace gemlet::hook
