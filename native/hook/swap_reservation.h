// Reserved addresses and what is behind them: how a reservation is made, found and given back.
#pragma once

#include <mutex>

#include "swap_space.h"

namespace gemlet::hook {

struct FoundReservation {
    SwapSpace* space;
    Reservation* reservation;
};
// Whose address it is; with `mutex` of that space held by `lock`. Nulls: nobody's.
FoundReservation find_reservation(CUdeviceptr address, std::unique_lock<std::mutex>& lock);

// With memory in it, charged and admitted. With `allocating`.
CUresult make_reservation(SwapSpace& space, uint64_t asked, CUcontext context, Reservation*& made);
// With `allocating`, and `mutex` held by `lock`.
CUresult free_reservation(SwapSpace& space, CUdeviceptr start, std::unique_lock<std::mutex>& lock);

}  // namespace gemlet::hook
