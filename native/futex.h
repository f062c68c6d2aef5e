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

}  // namespace gemlet
