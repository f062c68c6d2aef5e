// futex(2) on words shared between processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace gemlet {

inline long futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
    timespec t{time_t(timeout_ns / 1'000'000'000u), long(timeout_ns % 1'000'000'000u)};
    return syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

inline long futex_wake_all(const std::atomic<uint32_t>& word) {
    return syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The daemon wakes no more of a program's threads with one call: each takes it microseconds, and a program may have
// thousands. Threads that it wakes wake the rest, and each looks again by itself within 100 ms.
inline constexpr int kWokenAtOnce = 64;
inline long futex_wake_some(const std::atomic<uint32_t>& word) {
    return syscall(SYS_futex, &word, FUTEX_WAKE, kWokenAtOnce, nullptr, nullptr, 0);
}

}  // namespace gemlet
