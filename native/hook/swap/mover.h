// One mover's own state, and the parts of its work: stopping the program, copying out and in.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

#include "hook/swap/context_sync.h"
#include "hook/swap/fingerprint.h"
#include "hook/swap/space.h"

namespace gemlet::hook {

// The streams of its copies. They belong to one context and go away with it.
struct CopyStreams {
    CUcontext context = nullptr;
    CUstream out = nullptr, in = nullptr;
    std::vector<CUevent> events;  // as many as may be under way; those that are not are here
};

struct Mover {
    explicit Mover(SwapSpace& s) : space(s) {}
    SwapSpace& space;
    std::atomic<bool> has_thread{false};  // else the system has allowed none so far
    std::mutex using_driver;              // held while it works, so that a context is not destroyed under it
    std::set<CUcontext> going;            // contexts that are being destroyed; with `using_driver`
    CopyStreams streams;
    ContextSync sync;
    Fingerprinter fingerprinter;
    uint64_t retry = 0;  // rest after a refusal; doubles
    // Since when the program has neither allocated nor been told to move, and how much it had then.
    uint64_t quiet_since = 0, quiet_movable = 0;
    uint32_t quiet_order = 0;
    uint64_t spare_since = 0;  // since when the host's side is larger than it has to be; 0: it is not
    int dead = 0;              // synchronisations in a row that failed for good
};

// swap/copies.cpp; with `using_driver` and in a context

CUresult make_streams(Mover& m, CUcontext context);
void destroy_streams(Mover& m);
// Moves out until no more than the allowance is on the device. The gate is closed and nothing runs.
CUresult move_out(Mover& m, std::unique_lock<std::mutex>& lock);
// Brings in as much as the allowance has room for.
CUresult move_in(Mover& m, std::unique_lock<std::mutex>& lock);

// swap/host_memory.cpp; with `using_driver`

// Bytes of host memory to keep ready if `away` bytes of the program may have to move there; only whole chunks
// move.
inline uint64_t host_side(uint64_t away) {
    return away == 0 ? 0 : away + kChunk;
}
// Takes some host memory before it is needed, or gives back memory that is no longer needed. Takes `mutex`.
// Returns how long to rest.
uint64_t tend_host_side(Mover& m, CUcontext context, uint64_t movable, uint64_t rest);
// A place for a chunk that moves out, with `mutex`. None if the system has no more memory, or may not be asked for
// more.
bool take_place_of_another(Mover& m, Chunk& chunk);
void say_no_memory(SwapSpace& space);

// swap/stop.cpp

// Closes the gate and waits until nothing runs. False if that is not possible now; the gate is as it was then.
bool stop_program(Mover& m);
// Takes note of the driver's answer. After enough fatal answers in a row the program is let through, to see the
// error itself.
void take_note(Mover& m, CUresult result);

}  // namespace gemlet::hook
