// cuMemAllocAsync, cuMemAllocFromPoolAsync and cuMemFreeAsync on movable memory.
//
// The order of streams: every stream may use an allocation at once, which is more than the program may assume. A
// free puts the block aside with an event of its stream behind it. The block is handed out again to the same
// stream, whose next work comes after the free anyway, or to any other stream once the event is over, and only
// then given back to the driver. Blocks put aside are dead: they move without a copy.
//
// A pool stays with the driver, and its memory stays on the device, if others may hold on to that memory: it was
// made to be shared or exported, or other devices have access to it (memory/pool.cpp decides).
#include "hook/swap/stream_ordered.h"

#include <algorithm>

#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/size.h"
#include "hook/submit/streams.h"
#include "hook/swap/reservation.h"

namespace gemlet::hook {

namespace {

// At the next synchronisation the driver gives back memory above a pool's threshold. Here, memory that has lain
// unused for a while is given back: making a block anew costs a hundred times as much as handing it out again.
constexpr uint64_t kUnused = 100'000'000;
constexpr int kTries = 8;  // of other streams' blocks, the oldest first: if these are in use, the later ones are

bool is_over(const FreedBlock& block, bool wait = false) {
    RelaxedCapture relaxed;
    if (block.over) return true;
    return wait ? own().cuEventSynchronize(block.end.event) == CUDA_SUCCESS : has_ended(block.end);
}

uint64_t owner_of(const Stream& stream) {
    static std::atomic<uint64_t> threads{0};
    static thread_local const uint64_t number = ++threads;
    return stream.per_thread ? number : 0;
}

uint64_t threshold_of(CUmemoryPool pool) {
    RelaxedCapture relaxed;
    cuuint64_t bytes = 0;
    auto get = own().cuMemPoolGetAttribute;
    return get && get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

// A block that was put aside and fits, and is not much larger than necessary. With `mutex`.
std::list<FreedBlock>::iterator find_freed(SwapSpace& space, CUmemoryPool pool, uint64_t need, const Stream* stream) {
    const uint32_t generation = launch_state.generation.load(std::memory_order_acquire);
    const uint64_t thread = owner_of(*stream);
    const auto fits = [&](const FreedBlock& block) {
        return block.pool == pool && block.bytes >= need && block.bytes <= need + need / 8;
    };
    auto& freed = space.freed;
    for (auto block = freed.begin(); block != freed.end(); ++block)
        if (fits(*block) && block->stream == stream && block->thread == thread && block->generation == generation)
            return block;
    int tries = kTries;
    for (auto block = freed.begin(); block != freed.end() && tries > 0; ++block)
        if (fits(*block) && (--tries, is_over(*block))) return block;
    return freed.end();
}

void note_used(SwapSpace& space, CUmemoryPool pool, uint64_t bytes) {
    PoolBytes& p = space.pools[pool];
    p.used += bytes;
    p.used_high = std::max(p.used_high, p.used);
}

// Gives back blocks that were not requested for a while and that nothing uses any more. Running work may wait for
// something that this thread does next, so this thread does not wait. With `allocating`.
void release_unused(SwapSpace& space) {
    std::map<CUmemoryPool, uint64_t> old;
    {
        std::lock_guard lock(space.mutex);
        const uint64_t now = now_ns();
        for (const FreedBlock& block : space.freed)
            if (now - block.freed_at > kUnused) old[block.pool] += block.bytes;
    }
    for (auto [pool, bytes] : old)
        if (const uint64_t threshold = threshold_of(pool); bytes > threshold)
            release_freed(space, threshold, pool, false);
}

}  // namespace

bool is_freed(const SwapSpace& space, CUdeviceptr pointer) {
    return std::any_of(space.freed.begin(), space.freed.end(),
                       [&](const FreedBlock& b) { return b.start == pointer; });
}

bool release_freed(SwapSpace& space, uint64_t keep, std::optional<CUmemoryPool> pool, bool wait) {
    if (launch_state.captures.load() != 0) return false;  // which giving memory back would spoil
    std::list<FreedBlock> going;
    std::unique_lock lock(space.mutex);
    uint64_t left = 0;
    for (const FreedBlock& block : space.freed)
        if (!pool || block.pool == *pool) left += block.bytes;
    for (auto block = space.freed.begin(); block != space.freed.end() && left > keep;) {
        const auto next = std::next(block);
        if ((!pool || block->pool == *pool) && (wait || is_over(*block))) {
            left -= block->bytes;
            going.splice(going.end(), space.freed, block);
        }
        block = next;
    }
    bool some = false;
    while (!going.empty()) {
        lock.unlock();
        const bool over = is_over(going.front(), wait);
        lock.lock();
        // A block that cannot be given back is put aside again.
        if (over && free_block(space, going.front().start, lock) == CUDA_SUCCESS) {
            drop_end(going.front().end);
            going.pop_front();
            some = true;
        } else {
            going.front().freed_at = now_ns();
            space.freed.splice(space.freed.end(), going, going.begin());
        }
    }
    return some;
}

void release_unpooled(SwapSpace& space) {
    constexpr CUmemoryPool kNone = nullptr;
    std::unique_lock allocating(space.allocating, std::try_to_lock);  // outermost, and the mover has other locks
    if (allocating) release_freed(space, 0, kNone, false);
}

void free_blocks_are_dead(SwapSpace& space) {
    for (const FreedBlock& block : space.freed)
        if (Reservation* r = find_in(space, block.start))
            for (auto& chunk : r->chunks) {
                const CUdeviceptr from = std::max(block.start, chunk->address);
                const CUdeviceptr to = std::min(block.start + block.bytes, chunk->address + chunk->bytes);
                if (from < to) chunk->dead.add(from - chunk->address, to - chunk->address);
            }
}

void forget_freed(SwapSpace& space, CUcontext context) {
    space.freed.remove_if([&](const FreedBlock& block) { return block.context == context; });
    for (FreedBlock& block : space.freed)
        if (block.end.context == context) {  // which has nothing running any more
            block.end = {};
            block.over = true;
        }
}

std::optional<CUresult> swap_allocate_async(CUdeviceptr* pointer, uint64_t bytes, CUmemoryPool pool, CUstream handle,
                                            bool per_thread) {
    Stream* stream = bytes == 0 || bytes >= kAbsurd || !pointer ? nullptr : stream_for(handle, per_thread);
    SwapSpace* found = stream ? swap_space(stream->device->ordinal) : nullptr;
    if (!found || !found->moves) return std::nullopt;
    SwapSpace& space = *found;
    const uint64_t need = shares_slab(bytes) ? round_up(bytes, kSmallUnit) : round_up(bytes, kBlock);
    std::lock_guard allocating(space.allocating);
    {
        std::lock_guard lock(space.mutex);
        if (auto block = find_freed(space, pool, need, stream); block != space.freed.end()) {
            *pointer = block->start;
            if (Reservation* r = find_in(space, block->start); !r->pieces) r->asked = bytes;
            note_used(space, pool, block->bytes);
            drop_end(block->end);
            space.freed.erase(block);
            return CUDA_SUCCESS;
        }
    }
    release_unused(space);
    CUresult result = allocate_block(space, pointer, bytes, stream->context, pool);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && release_freed(space, 0))
        result = allocate_block(space, pointer, bytes, stream->context, pool);
    if (result == CUDA_SUCCESS) {
        std::lock_guard lock(space.mutex);
        note_used(space, pool, need);
    }
    return result;
}

std::optional<CUresult> swap_free_async(CUdeviceptr pointer, CUstream handle, bool per_thread) {
    CUdevice device = -1;
    {
        std::unique_lock<std::mutex> lock;
        auto [space, r] = find_reservation(pointer, lock);
        if (!space) return std::nullopt;
        device = space->device.ordinal;
    }
    Stream* stream = stream_for(handle, per_thread);
    if (!stream) return CUDA_ERROR_INVALID_CONTEXT;
    SwapSpace& space = *swap_space(device);
    StreamEnd end;
    {
        RelaxedCapture relaxed;
        if (CUresult failed = record_end(end, stream->context, meant(handle, per_thread))) return failed;
    }
    std::lock_guard allocating(space.allocating);
    std::unique_lock lock(space.mutex);
    Reservation* r = find_in(space, pointer);
    const uint64_t bytes = r ? block_at(*r, pointer) : 0;
    if (bytes == 0 || is_freed(space, pointer)) {
        drop_end(end);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const FreedBlock block{.start = pointer,
                           .bytes = bytes,
                           .pool = r->pool,
                           .context = r->context,
                           .stream = stream,
                           .thread = owner_of(*stream),
                           .generation = launch_state.generation.load(std::memory_order_acquire),
                           .end = end,
                           .over = false,
                           .freed_at = now_ns()};
    if (block.pool) space.pools[block.pool].used -= bytes;
    space.freed.push_back(block);
    lock.unlock();
    release_unused(space);
    return CUDA_SUCCESS;
}

SwapPoolBytes swap_pool_bytes(CUmemoryPool pool) {
    SwapPoolBytes sum;
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* space = swap_space(device);
        if (!space) continue;
        std::lock_guard lock(space->mutex);
        const auto known = space->pools.find(pool);
        if (known == space->pools.end()) continue;
        const PoolBytes& p = known->second;
        sum = {sum.used + p.used, sum.used_high + p.used_high, sum.reserved + p.reserved,
               sum.reserved_high + p.reserved_high};
    }
    return sum;
}

void swap_pool_trim(CUmemoryPool pool, uint64_t keep) {
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* space = swap_space(device);
        if (!space) continue;
        std::lock_guard allocating(space->allocating);
        release_freed(*space, keep, pool);
    }
}

}  // namespace gemlet::hook
