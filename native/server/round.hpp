// How long the thread that decides reads messages, or learns of processes that have ended, before clocks, other
// descriptors and other threads have their turn.
#pragma once

#include "arbiter/arbiter.hpp"
#include "server/yielding_mutex.hpp"

namespace gemlet::server {

inline constexpr arbiter::Nanoseconds kRound = 2'000'000;

class Round {
  public:
    Round(const YieldingMutex& held, arbiter::Nanoseconds end) : held_(held), end_(end) {}
    // Python's thread asks for something many times a second, for users who wait for an answer.
    bool is_over(arbiter::Nanoseconds now) const { return now >= end_ || held_.is_wanted(); }

  private:
    const YieldingMutex& held_;
    const arbiter::Nanoseconds end_;
};

}  // namespace gemlet::server
