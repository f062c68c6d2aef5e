#include "hook/swap/reservation.h"

#include <algorithm>

#include "hook/lookup/own_calls.h"
#include "hook/memory/accounting.h"
#include "hook/memory/size.h"
#include "hook/swap/admission.h"

namespace gemlet::hook {

namespace {

std::atomic<uint64_t> next_id{1};

// Addresses for `bytes`, cut into chunks. With `mutex`.
CUresult reserve_chunks(SwapSpace& space, Reservation& r,
                        const std::shared_ptr<const CUmemAllocationProp>& properties) {
    if (CUresult result = own().cuMemAddressReserve(&r.start, r.bytes, 0, 0, 0)) return result;
    for (uint64_t at = 0; at < r.bytes; at += kChunk) {
        auto chunk = std::make_unique<Chunk>();
        chunk->address = r.start + at;
        chunk->bytes = std::min(kChunk, r.bytes - at);
        chunk->properties = properties;
        space.movable += chunk->bytes;
        space.chunks.push_back(chunk.get());
        r.chunks.push_back(std::move(chunk));
    }
    return CUDA_SUCCESS;
}

// Gives back a whole reservation, whose content is no longer needed. With `mutex`, which is released during a copy
// under way. If the driver refuses, it keeps the memory, which then stays accounted for.
CUresult release_chunks(SwapSpace& space, Reservation& r, std::unique_lock<std::mutex>& lock) {
    CUresult result = CUDA_SUCCESS;
    for (auto& chunk : r.chunks) chunk->leaving = true;
    for (auto& chunk : r.chunks) {
        space.copied.wait(lock, [&] { return !chunk->busy; });
        chunk->discard();
        if (CUresult failed = vacate(space, *chunk)) result = failed;
    }
    if (result == CUDA_SUCCESS) result = own().cuMemAddressFree(r.start, r.bytes);
    if (result != CUDA_SUCCESS) {  // the program has it still, so the mover brings back what is gone already
        for (auto& chunk : r.chunks) chunk->leaving = false;
        if (!space.all_resident() && !space.gate.closed()) space.close_gate();
        space.wake_mover();
        return result;
    }
    for (auto& chunk : r.chunks) {
        if (chunk->slot != kNoSlot) space.arena.give(chunk->slot);
        if (!chunk->stays) space.movable -= chunk->bytes;
        std::erase(space.chunks, chunk.get());
    }
    r.chunks.clear();
    return CUDA_SUCCESS;
}

}  // namespace

Reservation* find_in(SwapSpace& space, CUdeviceptr address) {
    auto next = space.reservations.upper_bound(address);
    if (next == space.reservations.begin()) return nullptr;
    Reservation& r = *std::prev(next)->second;
    return address - r.start < r.bytes ? &r : nullptr;
}

FoundReservation find_reservation(CUdeviceptr address, std::unique_lock<std::mutex>& lock) {
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* space = swap_space(device);
        if (!space) continue;
        std::unique_lock held(space->mutex);
        Reservation* r = find_in(*space, address);
        if (!r || !r->context) continue;  // a home is no allocation of the program's
        lock = std::move(held);
        return {space, r};
    }
    return {nullptr, nullptr};
}

CUresult make_reservation(SwapSpace& space, uint64_t asked, CUcontext context, CUmemoryPool pool, Reservation*& made,
                          std::shared_ptr<const CUmemAllocationProp> properties) {
    const uint64_t bytes = round_up(asked, kBlock);
    Announced announced(space, bytes);  // gone last: it takes `mutex`
    const wire::ResidencyPage* asked_there = space.page.load();
    if (!charge_movable(space.device.ordinal, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (wire::Admission why = space.ask(wire::MessageType::kAdmit, announced.total());
        why != wire::Admission::kGranted) {
        explain_refusal(space, why, bytes);
        give_back(space.device.ordinal, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::unique_lock lock(space.mutex);
    announced.came_true();
    auto r = std::make_unique<Reservation>();
    r->bytes = bytes;
    r->asked = asked;
    r->context = context;
    r->pool = pool;
    r->id = next_id.fetch_add(1);
    CUresult result = reserve_chunks(space, *r, properties);
    if (result == CUDA_SUCCESS) {
        const bool open = !space.gate.closed();
        for (auto& chunk : r->chunks) {
            // One that is stopped here for long goes on with what it is allowed by then, and the daemon sees that it
            // gets on.
            space.adopt_order();
            space.publish();
            if (space.mapped + chunk->bytes > space.limit) break;  // the mover brings it when there is room
            result = bring(space, *chunk, true);
            if (result != CUDA_SUCCESS) break;
            if (open) chunk->opened();  // programs may write to it as soon as they know the address
        }
        if (result != CUDA_SUCCESS && release_chunks(space, *r, lock) != CUDA_SUCCESS) {
            // The reservation can be neither used nor given back; memory that the driver holds of it stays
            // charged.
            space.reservations[r->start] = std::move(r);
            space.publish();
            return result;
        }
    }
    if (result != CUDA_SUCCESS) {
        tell_less(space);
        lock.unlock();
        give_back(space.device.ordinal, bytes);
        return result;
    }
    made = r.get();
    if (pool) {
        PoolBytes& p = space.pools[pool];
        p.reserved += bytes;
        p.reserved_high = std::max(p.reserved_high, p.reserved);
    }
    space.reservations[r->start] = std::move(r);
    if (!space.all_resident() && !space.gate.closed()) space.close_gate();
    space.publish();
    // If the daemon was replaced since it was asked, the new one was told a smaller amount when it came.
    if (space.page.load() != asked_there && space.managed())
        space.tell(wire::MessageType::kAdmit, space.movable, 0, wire::kAdopt);
    start_mover(space);
    if (space.gate.closed()) space.wake_mover();
    return CUDA_SUCCESS;
}

CUresult free_reservation(SwapSpace& space, CUdeviceptr start, std::unique_lock<std::mutex>& lock) {
    Reservation& r = *space.reservations.at(start);
    const uint64_t bytes = r.bytes;
    const CUmemoryPool pool = r.pool;
    if (CUresult failed = release_chunks(space, r, lock)) return failed;
    space.reservations.erase(start);
    if (pool) {
        PoolBytes& p = space.pools[pool];
        p.reserved -= bytes;
        p.used = std::min(p.used, p.reserved);  // with a context goes what nobody freed
    }
    lock.unlock();
    give_back(space.device.ordinal, bytes);
    lock.lock();
    tell_less(space);
    if (space.gate.closed()) space.wake_mover();  // it may have been the one that was missing
    return CUDA_SUCCESS;
}

}  // namespace gemlet::hook
