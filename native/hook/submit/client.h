// The hook's side of the daemon: connection, token, ledger. The rest of the hook knows only this header.
//
// Nothing here throws, prints on a healthy path, or ends the process. Without a daemon every call answers as if
// there were no limits (or refuses work, with GEMLET_STRICT=1).
#pragma once

#include <cstdint>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// Connects on the first call (from cuInit), again after fork or when the daemon came back. Cheap when connected.
void client_start();

// The daemon went away: this process runs on without limits (or waits, with GEMLET_STRICT). Harmless if it is there.
void lost();
// Joins again and attaches every device in use. False while there is no daemon.
bool reconnect();

// --- memory (ledger.cpp) -----------------------------------------------------------------------------------------
// `device` is CUDA's ordinal in this process.

// Reserves before the driver is asked. False: the group's limit would be passed; the caller answers
// CUDA_ERROR_OUT_OF_MEMORY. The refusal is explained once on stderr by the callee.
bool memory_reserve(CUdevice device, uint64_t bytes);
void memory_release(CUdevice device, uint64_t bytes);
// Books what the driver already took by itself (a pool or a graph that grew), past the limit if it must be.
void memory_book(CUdevice device, uint64_t bytes);

struct MemoryView {
    uint64_t limit;  // wire::kNoLimit when there is none
    uint64_t used;   // by the whole group on this device, contexts included
};
MemoryView memory_view(CUdevice device);
// The same for a process that has not started CUDA or does not see the device there (NVML asks).
MemoryView memory_view(const CUuuid& device);

// What one more context takes on this device (0 if not known yet). Reserve it before creating a context, release it
// when context_count_changed() has told the daemon, which then books what the driver really took.
uint64_t context_estimate(CUdevice device);
void context_count_changed(CUdevice device, int contexts);
// Returns when the daemon has booked them (or after a while, if it is busy or gone).
void await_contexts_booked(CUdevice device, int contexts);

// Device of the calling thread's current context; -1 without one.
CUdevice current_device();

// --- token (launch.cpp, pacer.cpp)
// ---------------------------------------------------------------------------------- Called by context.cpp before a
// context or stream goes away, so that no event of ours outlives it.
void context_destroying(CUcontext context);
void stream_destroying(CUstream stream);

}  // namespace gemlet::hook
