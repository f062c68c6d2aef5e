// Reserved addresses and the memory behind them: how a reservation is made, found and given back.
#pragma once

#include <mutex>

#include "hook/swap/space.h"

namespace gemlet::hook {

struct FoundReservation {
    SwapSpace* space;
    Reservation* reservation;
};
// The space and reservation of an address, with `mutex` of that space held by `lock`. Nulls if there is none.
FoundReservation find_reservation(CUdeviceptr address, std::unique_lock<std::mutex>& lock);

// The same in one space; with its `mutex`.
Reservation* find_in(SwapSpace& space, CUdeviceptr address);

// With memory in it, charged and admitted. `properties`: of its physical memory, where the program chose them. With
// `allocating`.
CUresult make_reservation(SwapSpace& space, uint64_t asked, CUcontext context, CUmemoryPool pool, Reservation*& made,
                          std::shared_ptr<const CUmemAllocationProp> properties = nullptr);
// With `allocating`, and `mutex` held by `lock`.
CUresult free_reservation(SwapSpace& space, CUdeviceptr start, std::unique_lock<std::mutex>& lock);

// One allocation: a reservation of its own, or a piece of a slab. With `allocating`.
CUresult allocate_block(SwapSpace& space, CUdeviceptr* pointer, uint64_t bytes, CUcontext context, CUmemoryPool pool);
// Gives it back; nothing that runs uses it. With `allocating`, and `mutex` held by `lock`.
CUresult free_block(SwapSpace& space, CUdeviceptr pointer, std::unique_lock<std::mutex>& lock);
// Bytes of the allocation that begins there; 0 if none does. With `mutex`.
uint64_t block_at(const Reservation& r, CUdeviceptr pointer);

}  // namespace gemlet::hook
