// Time of the simulated machine: nanoseconds of the real one's clock, the same in every process.
#pragma once

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <chrono>
#include <cstdint>

#include "machine/clock.h"

namespace gemlet::sim {

using Nanoseconds = uint64_t;

inline constexpr Nanoseconds kNever = UINT64_MAX;

// A sleeper asks to be woken this much early and spins the rest: a timer alone is late by tens of microseconds, and a
// longer spin would take a core from the programs that share this machine.
inline constexpr Nanoseconds kSpinWindow = 20'000;

inline Nanoseconds monotonic_now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<Nanoseconds>(t.tv_sec) * 1'000'000'000u +
           static_cast<Nanoseconds>(t.tv_nsec - ahead_from_the_begin_ns());
}

// The same time for a wait.
inline std::chrono::steady_clock::time_point steady(Nanoseconds time) {
    return std::chrono::steady_clock::time_point(
        std::chrono::nanoseconds(static_cast<int64_t>(time) + ahead_from_the_begin_ns()));
}

inline void relax_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The kernel may delay a thread's timers by 50 us to save wake-ups; a modelled completion is not to wait that long.
class ExactTimers {
  public:
    ExactTimers() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1UL); }
    ~ExactTimers() {
        if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
    }
    ExactTimers(const ExactTimers&) = delete;
    ExactTimers& operator=(const ExactTimers&) = delete;

  private:
    int before_;
};

}  // namespace gemlet::sim
