// Device time of about the last second.
#pragma once

#include <algorithm>
#include <cmath>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

class Recently {
  public:
    void add(Nanoseconds amount, Nanoseconds now) {
        used_ = used_ * left(now) + static_cast<double>(amount);
        at_ = std::max(at_, now);
    }
    double share(Nanoseconds now, Nanoseconds more = 0) const {
        return (used_ * left(now) + static_cast<double>(more)) / kSpan;
    }

  private:
    static constexpr double kSpan = 500e6;
    double left(Nanoseconds now) const {
        return std::exp(-static_cast<double>(std::max<Nanoseconds>(0, now - at_)) / kSpan);
    }
    double used_ = 0.0;
    Nanoseconds at_ = 0;
};

}  // namespace gemlet::arbiter
