// Which device, context and stream a submission goes to, and whether somebody is capturing.
#pragma once

#include <atomic>

#include "hook/lookup/cuda_api.h"
#include "hook/submit/pacer.h"

namespace gemlet::hook {

// The slot of the stream a call with this handle means in this thread; null without a context (the driver will say
// what is wrong). `per_thread`: the `_ptsz` and `_ptds` symbols, where handle 0 is the thread's own default stream.
Stream* stream_for(CUstream handle, bool per_thread);
// The slot of the same stream for what it makes another device do, as it does by a graph. Null if this process does
// not use that device.
Stream* stream_elsewhere(const Stream& stream, CUdevice device);
// Whether a call that has no such slot goes to the driver all the same.
bool passes_unknown();

// Read on every launch, written when a capture begins or a stream goes away.
struct alignas(64) LaunchState {
    std::atomic<int> captures{0};         // in progress in this process: meanwhile nothing is recorded or sampled
    std::atomic<uint32_t> generation{1};  // raised when a stream or context goes away: threads' caches are stale then
};
extern constinit LaunchState launch_state;

// Before a context or stream goes away, so that no event of ours outlives it.
void context_destroying(CUcontext context);
void stream_destroying(CUstream stream);

void forget_streams();  // in a forked child, where none of the parent's exist

// The stream that such a call means, by a handle that means it in every call.
inline CUstream meant(CUstream handle, bool per_thread) {
    return !handle && per_thread ? CU_STREAM_PER_THREAD : handle;
}

// True if work on the stream would go into a graph (or is forbidden) rather than to the device. `handle` as meant().
bool is_capturing(CUstream handle);

void capture_begins();                                // before the driver is asked to begin one
void capture_began(CUstream handle, bool succeeded);  // after; `handle` as meant()
void capture_ended(CUstream handle);                  // after cuStreamEndCapture, whatever it answered
void captures_gone(CUcontext context);                // those of streams that went with their context

}  // namespace gemlet::hook
