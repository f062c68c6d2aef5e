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

// What cuMemCreate makes and the program maps (swap/created.cpp, swap/views.cpp, swap/pinned.cpp).
std::optional<CUresult> swap_create(CUmemGenericAllocationHandle* handle, uint64_t bytes,
                                    const CUmemAllocationProp& properties);
// Empty also for one that stays, with the last of the program's references to it: swap_released() follows if the
// driver released it.
std::optional<CUresult> swap_release(CUmemGenericAllocationHandle handle);
void swap_released(CUmemGenericAllocationHandle handle);
std::optional<CUresult> swap_map(CUdeviceptr start, uint64_t bytes, uint64_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long flags);
// `others`: what does the same for what is not movable, between what is.
std::optional<CUresult> swap_unmap(CUdeviceptr start, uint64_t bytes, CUresult (*others)(CUdeviceptr, size_t));
std::optional<CUresult> swap_set_access(CUdeviceptr start, uint64_t bytes, const CUmemAccessDesc* wanted,
                                        uint64_t count);
std::optional<unsigned long long> swap_access(CUdeviceptr address, const CUmemLocation& location);
bool swap_is_mapped(CUdeviceptr start, uint64_t bytes);  // some of it, as movable memory
std::optional<CUresult> swap_retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address);
std::optional<CUmemAllocationProp> swap_properties(CUmemGenericAllocationHandle handle);
// The driver's handle, for one of the program's.
CUmemGenericAllocationHandle swap_real(CUmemGenericAllocationHandle handle);
// The same, where that must be one of the driver's: what it is for stays on the device from now on. Likewise what is
// mapped at addresses.
CUresult swap_pin(CUmemGenericAllocationHandle& handle);
CUresult swap_pin_range(CUdeviceptr start, uint64_t bytes);

// The allocation a movable address is in.
struct SwapRange {
    CUdeviceptr start;
    uint64_t bytes;
    CUcontext context;
    CUdevice device;
    uint64_t id;
    bool sync_memops;
    CUmemoryPool pool;  // it stands for memory of this pool; null: of none
    // Of what the program mapped, of memory that it made by cuMemCreate:
    bool created = false;
    uint64_t block = 0;  // the memory's own number
    CUresult context_known = CUDA_SUCCESS;
    CUdeviceptr reserved = 0;  // addresses that it reserved
    uint64_t reserved_bytes = 0;
    unsigned access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;  // of the calling thread's device
    unsigned handle_types = 0;                                     // that it may be exported as
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
