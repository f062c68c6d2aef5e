// The group's memory on each device: what this process reserves of it, and what is left.
//
// Without a daemon every call answers as if there were no limit.
#pragma once

#include <cstdint>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// `device` is CUDA's ordinal in this process.

// Reserves before the driver is asked. False: the group's limit would be passed; the caller answers
// CUDA_ERROR_OUT_OF_MEMORY. The refusal is explained once on stderr by the callee.
bool memory_reserve(CUdevice device, uint64_t bytes);
void memory_release(CUdevice device, uint64_t bytes);
// Accounts for what the driver already took by itself (a pool or a graph that grew), past the limit if it must be.
void memory_account(CUdevice device, uint64_t bytes);

struct MemoryView {
    uint64_t limit;  // wire::kNoLimit when there is none
    uint64_t used;   // by the whole group on this device, contexts included
};
MemoryView memory_view(CUdevice device);
// The same for a process that has not started CUDA or does not see the device there (NVML asks).
MemoryView memory_view(const CUuuid& device);

// What one more context takes on this device (0 if not known yet). Reserve it before creating a context, release it
// when context_count_changed() has told the daemon, which then accounts for what the driver really took.
uint64_t context_estimate(CUdevice device);
// Returns when the daemon has accounted for them (or after a while, if it is busy or gone).
void await_contexts_accounted(CUdevice device, int contexts);

}  // namespace gemlet::hook
