// The threads that carry out what nobody waits for. Each starts with its first task and sleeps when it has none.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "work.hpp"

namespace gemlet::sim {

void Dispatcher::kick(Worker& worker) {
    if (!worker.started) {
        worker.started = true;
        // The program's signals are the program's: the new thread inherits a mask that blocks them all.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread([this, &worker] { run(worker); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    if (worker.kicked) return;
    worker.kicked = true;
    worker.wake.notify_one();
}

void Dispatcher::run(Worker& worker) {
    constexpr Nanoseconds kLookAgain = 10'000'000;  // others may have died meanwhile, so forecasts are early at worst
    pthread_setname_np(pthread_self(), worker.name);
    prctl(PR_SET_TIMERSLACK, 1UL);
    Lock lock(mutex_);
    for (;;) {
        worker.kicked = false;
        pump(worker.role, nullptr, lock);
        if (worker.kicked) continue;
        if (gone_ && gone_()) {  // until the process ends
            worker.wake.wait(lock, [&worker] { return worker.kicked; });
            continue;
        }
        const Nanoseconds at =
            worker.role == Role::kExecutor ? next_event(Role::kExecutor, nullptr, nullptr) : kNever;
        if (at == kNever) {
            worker.wake.wait(lock, [&worker] { return worker.kicked; });
            continue;
        }
        const Nanoseconds until = std::min(at, monotonic_now() + kLookAgain);
        worker.wake.wait_until(lock, steady(until), [&worker] { return worker.kicked; });
    }
}

}  // namespace gemlet::sim
