// The group's memory on each device: what this process reserves of it, and what is left.
//
// What becomes of it without a daemon, governance.h says.
#pragma once

#include <cstdint>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// `device` is CUDA's ordinal in this process.

enum class Wanted : uint8_t { kAllocation, kContext };  // what memory is for, as people are told

// Reserves before the driver is asked. False if the group's limit would be exceeded: the caller answers
// CUDA_ERROR_OUT_OF_MEMORY, and this function explains the refusal once on stderr.
bool memory_reserve(CUdevice device, uint64_t bytes, Wanted wanted);
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

// What one more context takes on this device. Not known yet: of a group with a limit what it has left, at most as
// much as contexts take; of another 0.
uint64_t context_estimate(CUdevice device);
// Room for a context: announced before it is reserved, and cancelled after it was released if no context was made.
void announce_room(CUdevice device, uint64_t bytes);
void cancel_room(CUdevice device, uint64_t bytes);
// To be called when the context is made and the daemon knows how many there are. Waits a while for the daemon to
// account for what the driver really took, and longer if others may make theirs only then; until then the room stays
// reserved.
void keep_room(CUdevice device, uint64_t bytes, bool others_wait);
// Releases the room for contexts that the daemon accounts for by now. Returns how much.
uint64_t release_room(CUdevice device);

}  // namespace gemlet::hook
