// Memory that can move to the host and back, as the hooks of memory see it; hook/swap defines all of this. A
// process has some only if the daemon said so when it attached the device (a `capacity` of the device or a
// `resident` limit of the group); otherwise only one test of a flag is reached here.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

extern constinit std::atomic<bool> swap_in_use;
// True once any device of this process has movable memory.
inline bool swap_active() {
    return swap_in_use.load(std::memory_order_acquire);
}

// --- allocations (swap/allocation.cpp). Empty: not movable memory's business, the caller goes on as without it.

std::optional<CUresult> swap_allocate(CUdeviceptr* pointer, uint64_t bytes);
std::optional<CUresult> swap_allocate_pitch(CUdeviceptr* pointer, size_t* pitch, uint64_t width, uint64_t height,
                                            unsigned element);
std::optional<CUresult> swap_free(CUdeviceptr pointer);

// In the order of a stream, for a pool whose memory may move (swap/stream_ordered.cpp). Not in a capture.
std::optional<CUresult> swap_allocate_async(CUdeviceptr* pointer, uint64_t bytes, CUmemoryPool pool, CUstream stream,
                                            bool per_thread);
std::optional<CUresult> swap_free_async(CUdeviceptr pointer, CUstream stream, bool per_thread);
// The bytes that such a pool has beyond those that the driver reports.
struct SwapPoolBytes {
    uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};
SwapPoolBytes swap_pool_bytes(CUmemoryPool pool);
void swap_pool_trim(CUmemoryPool pool, uint64_t keep);

// The allocation a movable address is in.
struct SwapRange {
    CUdeviceptr start;
    uint64_t bytes;
    CUcontext context;
    CUdevice device;
    uint64_t id;
    bool sync_memops;
    CUmemoryPool pool;  // it stands for memory of this pool; null: of none
};
std::optional<SwapRange> swap_find(CUdeviceptr address);
bool swap_set_sync_memops(CUdeviceptr address, bool on);

// How much more a program could allocate, of `left` bytes that its limit leaves; `free` now, as the driver says.
uint64_t swap_free_bytes(CUdevice device, uint64_t free, uint64_t left);

// Bytes in the ledger that the daemon must not take for memory that cannot move: more of them; or fewer, of those
// that were hidden.
void swap_hide(CUdevice device, uint64_t bytes);
void swap_show(CUdevice device, uint64_t bytes);

// Memory that cannot move was charged: waits until there is room for it. False if there never will be.
bool swap_make_room(CUdevice device, uint64_t bytes);

// --- contexts (swap/lifecycle.cpp)

void swap_context_stays(CUcontext context);  // it could not be destroyed
void swap_context_gone(CUcontext context);

}  // namespace gemlet::hook
