// Which context and device the calling thread works on.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// The calling thread's current context, null without one.
CUcontext current_context();

// To which memory belongs that the thread makes: the same, or the primary one of its device, if that one is green. A
// driver of CUDA 13 says so, and that such memory outlives the green context (bench.green_memory).
CUcontext owning_context();

// As the hook has seen them made, and go.
void green_context_made(CUcontext green, CUcontext primary);
void green_context_gone(CUcontext green);
void forget_green_contexts();  // in a forked child

// Its device; -1 without one.
CUdevice current_device();

// Device of the stream a call with this handle means; -1 if the handle is not valid.
CUdevice device_of_stream(CUstream stream);

// A context went away: its handle may come back for another device.
void context_handle_free();

}  // namespace gemlet::hook
