#include "arbiter/policies/arrivals.hpp"

#include <algorithm>
#include <cmath>

namespace gemlet::arbiter {

void Arrivals::note(Nanoseconds now) {
    if (last_ > 0) gaps_[count_++ % kKept] = now - last_;
    last_ = now;
    regular_ = false;
    if (count_ < kKept) return;
    double sum = 0.0;
    for (const Nanoseconds gap : gaps_) sum += static_cast<double>(gap);
    mean_ = sum / kKept;
    off_ = 0.0;
    for (const Nanoseconds gap : gaps_) off_ = std::max(off_, std::abs(static_cast<double>(gap) - mean_));
    regular_ =
        mean_ >= static_cast<double>(kShortest) && mean_ <= static_cast<double>(kLongest) && off_ <= kRegular * mean_;
}

Arrivals::Expected Arrivals::next(Nanoseconds now) const {
    if (!regular_) return {kNever, kNever};
    for (int n = 1; n <= kMissed; ++n) {
        const double at = static_cast<double>(last_) + n * mean_;
        const auto from = static_cast<Nanoseconds>(at - off_), until = static_cast<Nanoseconds>(at + off_);
        if (now < until) return {from, until};
    }
    return {kNever, kNever};
}

}  // namespace gemlet::arbiter
