// When a pause of the program ends its turn.
//
// Pure: the watcher reports what it sees, with the time. Ending a turn in a pause costs a hand-over; not ending it
// costs the pause. So a program whose pauses are short on average keeps its turn through them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gemlet::hook {

class Patience {
  public:
    // Up to here a pause is shorter on average than what two hand-overs and the wait in between cost.
    static constexpr uint64_t kShort = 500'000;

    struct Terms {
        uint64_t idle = 0;  // a pause this long ends the turn ...
        uint64_t idle_most =
            0;  // ... or this long, while the pauses that are longer than `idle` are short on average
    };

    // The program submits, or what it submitted runs.
    void active(uint64_t now, Terms terms) {
        if (pausing_) count(now - std::min(now, active_at_), terms);
        active_at_ = now;
        pausing_ = ended_ = false;
    }

    // The program does neither. True if that ends its turn.
    bool pauses(uint64_t now, Terms terms) {
        const uint64_t granted = average_ <= kShort ? std::max(terms.idle, terms.idle_most) : terms.idle;
        pausing_ = true;
        return ended_ = now - std::min(now, active_at_) >= granted;
    }

    // A turn begins. Its first submission was attempted at `wanted`, 0 if that is not known. A pause that ended
    // the previous turn ended then; the time in which the program has waited for the token since is not part of
    // the pause.
    void begins(uint64_t now, uint64_t wanted, Terms terms) {
        if (ended_ && wanted > active_at_) count(wanted - active_at_, terms);
        active_at_ = now;
        pausing_ = ended_ = false;
    }

    uint64_t average() const { return average_; }
    uint64_t active_at() const { return active_at_; }  // when it was last seen to do either

  private:
    void count(uint64_t pause, Terms terms) {
        if (pause <= terms.idle) return;
        // The terms may have changed, so older pauses count for no more than they would count now.
        const uint64_t most = 2 * std::max(terms.idle, terms.idle_most);
        average_ = (7 * std::min(average_, most) + std::min(pause, most)) / 8;
    }

    uint64_t average_ = 0;
    uint64_t active_at_ = 0;
    bool pausing_ = false, ended_ = false;  // now; the turn, by it
};

}  // namespace gemlet::hook
