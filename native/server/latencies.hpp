// How long requests took: counts by duration, in steps of about a fifth. They only grow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "arbiter/arbiter.hpp"

namespace gemlet::server {

class Latencies {
  public:
    static constexpr size_t kBounds = 84;  // 10 us to 80 s; one more count is for what took longer

    // ns; a duration is counted at the first bound that it does not pass.
    static constexpr int64_t bound(size_t i) {
        constexpr int64_t steps[] = {10, 12, 14, 17, 20, 24, 29, 35, 42, 50, 65, 80};
        int64_t scale = 1'000;
        for (size_t decade = i / 12; decade > 0; --decade) scale *= 10;
        return steps[i % 12] * scale;
    }

    void add(arbiter::Nanoseconds took) {
        size_t i = 0;
        while (i < kBounds && bound(i) < took) ++i;
        ++counts_[i];
        sum_ += took;
    }
    const std::array<uint64_t, kBounds + 1>& counts() const { return counts_; }
    arbiter::Nanoseconds sum() const { return sum_; }

  private:
    std::array<uint64_t, kBounds + 1> counts_{};
    arbiter::Nanoseconds sum_ = 0;
};

}  // namespace gemlet::server
