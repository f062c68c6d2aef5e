// What cuMemCreate made and cuMemMap mapped: how both are found, and how a mapping comes and goes.
#pragma once

#include <mutex>

#include "hook/submit/streams.h"
#include "hook/swap/space.h"

namespace gemlet::hook {

// Inside the gate of one space, waiting outside for as long as it is closed: then all that moves is on the device,
// and none of it leaves meanwhile. Beside a capture nobody waits, since the program leaves for others only once that
// is over; nor does anybody while there is no context to move memory in: then some of it may be away.
class InsideGate {
  public:
    explicit InsideGate(SwapSpace& space) : gate_(space.gate) {
        while (!(inside_ = gate_.enter()) && launch_state.captures.load() == 0 && has_context(space))
            space.await_open();
    }
    ~InsideGate() {
        if (inside_) gate_.leave();
    }
    InsideGate(const InsideGate&) = delete;
    InsideGate& operator=(const InsideGate&) = delete;
    explicit operator bool() const { return inside_; }

  private:
    MoveGate& gate_;
    bool inside_ = false;
};

struct FoundCreated {
    SwapSpace* space;
    Created* created;
};
// By the program's handle, with `mutex` of that space held by `lock`. Nulls if it is none of ours.
FoundCreated find_created(CUmemGenericAllocationHandle handle, std::unique_lock<std::mutex>& lock);

struct FoundView {
    SwapSpace* space;
    View* view;
};
FoundView find_view(CUdeviceptr address, std::unique_lock<std::mutex>& lock);
// The same in one space; with its `mutex`.
View* view_in(SwapSpace& space, CUdeviceptr address);
// Views that touch [start, start + bytes), in order. With `mutex`.
std::vector<View*> views_in(SwapSpace& space, CUdeviceptr start, uint64_t bytes);
bool is_within(const View& view, CUdeviceptr start, uint64_t bytes);

// With `mutex`. An error: it is as it was before, or will be once the mover is through.
CUresult add_view(SwapSpace& space, Created& created, CUdeviceptr start, uint64_t bytes, uint64_t offset);
CUresult remove_view(SwapSpace& space, View& view);

// Frees what neither a handle nor a view names any more. With `allocating`, and `mutex` held by `lock`.
CUresult free_created(SwapSpace& space, Created& created, std::unique_lock<std::mutex>& lock);

// From now on it stays on the device and has a handle of the driver's (swap/pinned.cpp). Without any lock.
CUresult pin_created(CUmemGenericAllocationHandle handle);
// Bytes of it that move now, and would not if it stayed. With `mutex`.
uint64_t more_would_stay(const SwapSpace& space, const Created& created);
// Whether there is room for others' memory if so much of this program's does not move any more. With `allocating`,
// without `mutex`.
bool may_stay(SwapSpace& space, uint64_t bytes);
// It stays, with the handles and views that it has. With `allocating` and `mutex`, inside the gate.
void keep_here(SwapSpace& space, Created& created);

}  // namespace gemlet::hook
