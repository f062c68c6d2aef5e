// The hard maximum of one group: a token bucket that smooths, and a sliding second that binds.
//
// The bucket fills at the rate of the maximum and pays for what is really used, so a lone group runs in blocks
// with pauses between. Time spent waiting behind others is not lost (the bucket goes on filling), but a long wait
// must not be made up for by passing the maximum later: that is what the sliding second forbids.
#pragma once

#include <array>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

class Cap {
  public:
    void reset(double max, Nanoseconds block, Nanoseconds now);  // starts with one block
    // Another maximum from now on. To change it, back and forth, gains nothing: what was used is not forgotten.
    void change(double max, Nanoseconds block, Nanoseconds now);

    bool binds() const { return max_ < 1.0; }
    void accrue(bool wants, Nanoseconds now);  // call with the old state whenever `wants` changes
    void use(Nanoseconds amount, Nanoseconds now);
    bool ready(Nanoseconds now);            // there is a block to run
    Nanoseconds ready_at(Nanoseconds now);  // when to ask again; kNever for a maximum of 0
    Nanoseconds runway(Nanoseconds now);    // how long a holder may run on without a pause

  private:
    static constexpr Nanoseconds kSecond = 1'000'000'000;
    static constexpr Nanoseconds kSlot = 2'000'000;
    static constexpr size_t kSlots = kSecond / kSlot + 1;
    static constexpr Nanoseconds kSlotsBefore = kSlots - 1;

    void set(double max, Nanoseconds block);
    void slide(Nanoseconds now);
    double room(Nanoseconds now);  // what the sliding second still allows

    double max_ = 1.0;
    double block_ = 0.0;
    double balance_ = 0.0;
    bool wants_ = false;
    Nanoseconds accrued_to_ = 0;
    std::array<Nanoseconds, kSlots> slots_{};  // use per slot of the last second
    Nanoseconds slot_ = 0;                     // number of the current slot since time 0
    Nanoseconds recent_ = 0;                   // sum of slots_
};

}  // namespace gemlet::arbiter
