// What programs call: movable memory is allocated and freed here.
#include <mutex>
#include <new>

#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/submit/streams.h"
#include "hook/swap/reservation.h"
#include "hook/swap/stream_ordered.h"

namespace gemlet::hook {

namespace {

// Returns when nothing of the current context runs any more, as cuMemFree does. Beside a capture cuCtxSynchronize
// fails and spoils it, where the driver lets memory be freed; and what frees memory of the host waits for the device,
// too (on an H200 with driver 580).
CUresult await_work() {
    const OwnCalls& o = own();
    if (launch_state.captures.load() == 0 || !o.cuMemAllocHost_v2 || !o.cuMemFreeHost) return o.cuCtxSynchronize();
    constexpr size_t kLittle = 4096;
    void* some = nullptr;
    if (CUresult failed = o.cuMemAllocHost_v2(&some, kLittle)) return failed;
    return o.cuMemFreeHost(some);
}

}  // namespace

CUresult allocate_block(SwapSpace& space, CUdeviceptr* pointer, uint64_t bytes, CUcontext context,
                        CUmemoryPool pool) {
    Reservation* made = nullptr;
    if (!shares_slab(bytes)) {
        CUresult result = make_reservation(space, bytes, context, pool, made);
        if (result == CUDA_SUCCESS) *pointer = made->start;
        return result;
    }
    const uint64_t piece = round_up(bytes, kSmallUnit);
    const auto take = [&](Reservation& slab) {
        const auto at = slab.pieces->take(piece);
        if (at) *pointer = slab.start + *at;
        return at.has_value();
    };
    {
        std::lock_guard lock(space.mutex);
        for (auto& [start, r] : space.reservations)
            if (r->pieces && r->context == context && r->pool == pool && take(*r)) return CUDA_SUCCESS;
    }
    if (CUresult failed = make_reservation(space, kBlock, context, pool, made)) return failed;
    std::lock_guard lock(space.mutex);
    made->pieces = std::make_unique<Pieces>(made->bytes);
    take(*made);
    return CUDA_SUCCESS;
}

uint64_t block_at(const Reservation& r, CUdeviceptr pointer) {
    if (!r.pieces) return pointer == r.start ? r.bytes : 0;
    const auto piece = r.pieces->find(pointer - r.start);
    return piece && piece->first == pointer - r.start ? piece->second : 0;
}

CUresult free_block(SwapSpace& space, CUdeviceptr pointer, std::unique_lock<std::mutex>& lock) {
    Reservation* r = find_in(space, pointer);
    if (!r) return CUDA_ERROR_INVALID_VALUE;
    if (r->pieces) {
        if (!r->pieces->give(pointer - r->start)) return CUDA_ERROR_INVALID_VALUE;
        if (!r->pieces->empty()) return CUDA_SUCCESS;
    }
    return free_reservation(space, r->start, lock);
}

std::optional<CUresult> swap_allocate(CUdeviceptr* pointer, uint64_t bytes) {
    Reentry reentry;
    SwapSpace* space = reentry.nested() ? nullptr : swap_space(current_device());
    if (!space || !space->moves || !pointer || bytes == 0 || bytes >= kAbsurd) return std::nullopt;
    CUcontext context = owning_context();
    std::lock_guard allocating(space->allocating);
    CUresult result = allocate_block(*space, pointer, bytes, context, nullptr);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !release_freed(*space, 0)) return result;
    return allocate_block(*space, pointer, bytes, context, nullptr);
}

std::optional<CUresult> swap_allocate_pitch(CUdeviceptr* pointer, size_t* pitch, uint64_t width, uint64_t height,
                                            unsigned element) {
    // The driver refuses anything odd.
    if (!pitch || width == 0 || height == 0 || width >= kAbsurd) return std::nullopt;
    if (element != 4 && element != 8 && element != 16) return std::nullopt;
    const uint64_t row = round_up(width, kPitchUnit);
    if (row >= kAbsurd / height) return std::nullopt;
    auto result = swap_allocate(pointer, row * height);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

std::optional<CUresult> swap_free(CUdeviceptr pointer) {
    Reentry reentry;
    if (reentry.nested() || pointer == 0) return std::nullopt;
    CUcontext context;
    {
        std::unique_lock<std::mutex> lock;
        auto [space, r] = find_reservation(pointer, lock);
        if (!space) return std::nullopt;
        if (block_at(*r, pointer) == 0 || is_freed(*space, pointer)) return CUDA_ERROR_INVALID_VALUE;
        context = r->context;
    }
    // As the driver does, since running work may still use it. In a dead context this call fails.
    {
        ContextScope scope(context);
        if (CUresult failed = await_work()) return failed;
    }
    std::unique_lock<std::mutex> lock;
    FoundReservation found = find_reservation(pointer, lock);
    if (!found.space) return CUDA_ERROR_INVALID_VALUE;  // another thread was faster
    SwapSpace& space = *found.space;
    lock.unlock();
    std::lock_guard allocating(space.allocating);
    lock.lock();
    const Reservation* r = find_in(space, pointer);
    if (!r || is_freed(space, pointer)) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t bytes = block_at(*r, pointer);
    const CUmemoryPool pool = r->pool;
    CUresult result = free_block(space, pointer, lock);
    if (result == CUDA_SUCCESS && pool) space.pools[pool].used -= bytes;
    return result;
}

}  // namespace gemlet::hook
