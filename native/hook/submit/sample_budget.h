// How many kernels may be timed, apart from those whose estimate is doubted: a wrong one would make every launch
// wait.
//
// The events around a kernel cost the device some microseconds, for nothing may run beside it meanwhile. That is
// little where a kernel is timed twice in a thousand launches. But a program whose grids change all the time, as
// those of a language model whose cache grows with each token, has new kernels in every step: timing all of them took
// 8 % of an H100 that eight such programs share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace gemlet::hook {

class SampleBudget {
  public:
    static constexpr uint64_t kAtOnce = 256;      // what a program needs that starts
    static constexpr uint64_t kEach = 5'000'000;  // ns between two from then on

    // Whether one may be timed at this time. Two threads at once may both have the last one.
    bool take(uint64_t now) {
        const uint64_t spent = std::max(spent_until_.load(std::memory_order_relaxed), now);
        if (spent - now > (kAtOnce - 1) * kEach) return false;
        spent_until_.store(spent + kEach, std::memory_order_relaxed);
        return true;
    }

  private:
    std::atomic<uint64_t> spent_until_{0};
};

}  // namespace gemlet::hook
