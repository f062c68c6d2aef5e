// One mover's own state, and the parts of its work: stopping the program, copying out and in.
#pragma once

#include <mutex>
#include <vector>

#include "swap_fingerprint.h"
#include "swap_space.h"

namespace gemlet::hook {

// Where its copies go. Of one context, and gone with it.
struct CopyStreams {
    CUcontext context = nullptr;
    CUstream out = nullptr, in = nullptr;
    std::vector<CUevent> events;  // as many as may be under way; those that are not are here
};

struct Mover {
    explicit Mover(SwapSpace& s) : space(s) {}
    SwapSpace& space;
    std::mutex using_driver;  // held while it works, so that a context is not destroyed under it
    CopyStreams streams;
    Fingerprinter fingerprinter;
    uint64_t retry = 0;  // rest after a refusal; doubles
    // Since when the program has neither allocated nor been told to move, and what it had then.
    uint64_t quiet_since = 0, quiet_movable = 0;
    uint32_t quiet_order = 0;
    int dead = 0;  // synchronisations in a row that failed for good
};

// --- swap_copies.cpp; with `using_driver` and in a context
// ----------------------------------------------------------

CUresult make_streams(Mover& m, CUcontext context);
void destroy_streams(Mover& m);
// Moves out until no more than the allowance is on the device. The gate is closed and nothing runs.
CUresult move_out(Mover& m, std::unique_lock<std::mutex>& lock);
// Brings in what the allowance has room for.
CUresult move_in(Mover& m, std::unique_lock<std::mutex>& lock);

// --- swap_stop.cpp
// ---------------------------------------------------------------------------------------------------

// Closes the gate and waits until nothing runs. False: not now; then the gate is as it was.
bool stop_program(Mover& m);
// What the driver answered. After enough answers in a row that nothing can mend, the program shall see for itself.
void take_note(Mover& m, CUresult result);

}  // namespace gemlet::hook
