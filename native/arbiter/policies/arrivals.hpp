// When a latency client comes next, if it comes as regularly as a clock: a camera, a control loop, a frame.
#pragma once

#include <array>
#include <cstddef>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

class Arrivals {
  public:
    void note(Nanoseconds now);

    struct Expected {
        Nanoseconds from, until;  // it will come in between
    };
    // The next time after `now` at which it is expected; {kNever, kNever} if it keeps no period.
    Expected next(Nanoseconds now) const;

    // Share of the time that is kept free if everything is `early` before it comes. For one that keeps a period.
    double cost(Nanoseconds early) const { return (static_cast<double>(early) + 2.0 * off_) / mean_; }

  private:
    static constexpr size_t kKept = 12;
    // Nothing is reserved for who comes so often that reserving would cost more than it saves, or so rarely that a
    // period is chance.
    static constexpr Nanoseconds kShortest = 5'000'000, kLongest = 2'000'000'000;
    static constexpr double kRegular = 0.02;  // largest deviation of a gap, of the mean
    static constexpr int kMissed = 2;         // it may stay away so often before it is forgotten

    std::array<Nanoseconds, kKept> gaps_{};
    size_t count_ = 0;  // of gaps so far
    Nanoseconds last_ = 0;
    double mean_ = 0.0, off_ = 0.0;
    bool regular_ = false;
};

}  // namespace gemlet::arbiter
