// The machine's clock, which hook and daemon share (35 ns a read: never on the launch path of a holder).
#pragma once

#include <sched.h>
#include <atomic>
#include <cstdint>
#include <ctime>

#include "hook/link/system_calls.h"

namespace gemlet::hook {

using Clock = int(clockid_t, timespec*);
Clock* machines_clock();  // libc's clock_gettime, whatever the program has in its place

// By how much this process is ahead of it. A process that is restored may come to be in another time namespace, and
// connects anew.
inline constinit std::atomic<int64_t> clock_ahead_ns{0};
void look_at_clock();  // before a connection to the daemon

inline uint64_t now_ns() {
    timespec t;
    machines_clock()(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1'000'000'000u + uint64_t(t.tv_nsec - clock_ahead_ns.load(std::memory_order_relaxed));
}

// For waits that are shorter than any sleep (with the default timer slack a sleep of 20 us takes 70): returns
// after half a microsecond, or when others no longer need the CPU.
inline void step_aside() {
    sched_yield();
}

inline void sleep_ns(uint64_t ns) {
    calls::sleep(ns);
}

}  // namespace gemlet::hook
