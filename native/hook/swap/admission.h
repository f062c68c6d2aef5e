// Around the question to the daemon whether there is room, which make_reservation() asks (SwapSpace::ask): what is
// announced before it, the meaning of a refusal, the message after a free.
#pragma once

#include <utility>

#include "hook/swap/space.h"

namespace gemlet::hook {

// One line for people.
void explain_refusal(SwapSpace& space, wire::Admission why, uint64_t bytes);

// A smaller amount needs no grant; the daemon is only told. With `mutex`.
void tell_less(SwapSpace& space);

// The daemon takes memory in the ledger that is not movable for fixed. So memory is declared movable before it is
// charged, and until after it was given back.
class Announced {
  public:
    Announced(SwapSpace& space, uint64_t bytes) : space_(space), bytes_(bytes) {
        std::lock_guard lock(space_.mutex);
        total_ = space_.movable + bytes;
        space_.announced += bytes;
        space_.publish();
    }
    ~Announced() {
        std::lock_guard lock(space_.mutex);
        came_true();
        space_.publish();
    }
    Announced(const Announced&) = delete;
    Announced& operator=(const Announced&) = delete;

    uint64_t total() const { return total_; }                           // bytes there will be
    void came_true() { space_.announced -= std::exchange(bytes_, 0); }  // with `mutex`

  private:
    SwapSpace& space_;
    uint64_t bytes_, total_;
};

}  // namespace gemlet::hook
