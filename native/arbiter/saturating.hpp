// Sums of bytes that stay within their type: kUnlimited stays unlimited, and nothing is less than nothing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gemlet::arbiter {

// Of any number of clients, exactly: what was added can be taken out again.
__extension__ typedef unsigned __int128 Total;

inline uint64_t minus(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}
inline uint64_t beyond(Total bytes, uint64_t limit) {
    return bytes > limit ? uint64_t(std::min<Total>(bytes - limit, UINT64_MAX)) : 0;
}
inline uint64_t left_of(uint64_t limit, Total taken) {
    return taken < limit ? limit - uint64_t(taken) : 0;
}
inline uint64_t plus(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

}  // namespace gemlet::arbiter
