// Which device and context the calling thread works on, and which contexts this process has.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// True once cuInit succeeded in this process.
bool cuda_started();

// The calling thread's current context, null without one. Its device is current_device() in submit/client.h.
CUcontext current_context();

// Device of the stream a call with this handle means; -1 if the handle is none.
CUdevice device_of_stream(CUstream stream);

}  // namespace gemlet::hook
