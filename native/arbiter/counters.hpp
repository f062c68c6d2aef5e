// Sums of what clients count. Each is a claim, and as large as its client likes, so the sums wrap around; what they
// grew by is right nevertheless.
#pragma once

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

inline Nanoseconds sum_of(Nanoseconds a, Nanoseconds b) {
    return static_cast<Nanoseconds>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
inline Nanoseconds growth(Nanoseconds now, Nanoseconds before) {
    return static_cast<Nanoseconds>(static_cast<uint64_t>(now) - static_cast<uint64_t>(before));
}

}  // namespace gemlet::arbiter
