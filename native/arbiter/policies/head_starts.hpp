// When a group of the class latency that is new may first go before the others.
#pragma once

#include <algorithm>
#include <limits>

namespace gemlet::arbiter {

// One that is not ahead of its share by more than the longest cycle goes before the others, and a new one is not
// ahead at all: however short each of many that come stays, each would have that head start out of what others are
// promised. So only a few have one at once, as when a server starts, and then one in so many cycles. Others that come
// have none until they have been here for a cycle.
class HeadStarts {
  public:
    // The virtual time from which one may hurry that comes now, which is `system` in virtual time.
    double next(double system, double cycle) {
        given_ = std::max(given_, system - kAtOnce * kEach * cycle);
        if (given_ + kEach * cycle > system) return system + cycle;
        given_ += kEach * cycle;
        return system;
    }

  private:
    static constexpr double kAtOnce = 4.0, kEach = 10.0;
    double given_ = -std::numeric_limits<double>::infinity();  // up to this virtual time they are used up
};

}  // namespace gemlet::arbiter
