// Sums of bytes that stay within their type: kUnlimited stays unlimited, and nothing is less than nothing.
#pragma once

#include <cstdint>

namespace gemlet::arbiter {

inline uint64_t minus(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}
inline uint64_t plus(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

}  // namespace gemlet::arbiter
