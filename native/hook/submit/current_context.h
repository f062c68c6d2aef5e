// Which context and device the calling thread works on.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// The calling thread's current context, null without one.
CUcontext current_context();

// Its device; -1 without one.
CUdevice current_device();

// Device of the stream a call with this handle means; -1 if the handle is not valid.
CUdevice device_of_stream(CUstream stream);

// A context went away: its handle may come back for another device.
void context_handle_free();

}  // namespace gemlet::hook
