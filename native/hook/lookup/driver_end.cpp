#include "hook/lookup/driver_end.h"

#include <sys/types.h>
#include <unistd.h>
#include <cstdlib>

#include "hook/link/clock.h"

namespace gemlet::hook {

namespace {

// A call of the hook's takes microseconds, those that move memory some milliseconds. One that takes longer waits for
// a kernel, maybe for one that never ends, or for a lock of this very thread.
constexpr uint64_t kPatience = 2'000'000'000;
constexpr uint64_t kStep = 20'000;

// The process that has registered it. A forked child inherits the handler, but none of the hook's threads.
std::atomic<pid_t> by_init{0}, by_thread{0};

void before_driver_ends() {
    const pid_t process = getpid();
    if (by_init.load() != process && by_thread.load() != process) return;
    if (driver_ends.exchange(true, std::memory_order_seq_cst)) return;
    thread_kind = ThreadKind::kEnding;
    for (const uint64_t begin = now_ns(); DriverVisit::visitors() > 0 && now_ns() - begin < kPatience;)
        sleep_ns(kStep);
}

}  // namespace

// The one that was registered last runs first, and the others find that it has.
void watch_driver_end() {
    const pid_t process = getpid();
    if (by_init.exchange(process) != process) std::atexit(before_driver_ends);
}

void watch_driver_end_by_thread() {
    const pid_t process = getpid();
    if (by_thread.exchange(process) != process) std::atexit(before_driver_ends);
}

void driver_ends_in_child() {
    driver_ends.store(false);
    thread_kind = ThreadKind::kProgram;
    DriverVisit::forget_visitors();
}

}  // namespace gemlet::hook
