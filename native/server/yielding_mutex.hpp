// The server's mutex: the thread that decides takes it again and again, and lets the others in between.
//
// It is free for an instant only between two rounds of a thread that always has something to do. A thread that sleeps
// until it is free would miss that instant, round after round: programs that send without end would keep those out
// that ask the daemon for anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "futex.h"

namespace gemlet::server {

class YieldingMutex {
  public:
    // `moment`: ns that the thread that decides waits for those who want it.
    explicit YieldingMutex(uint64_t moment = 1'000'000) : moment_(moment) {}
    void lock() {
        waiting_.fetch_add(1);
        mutex_.lock();
        waiting_.fetch_sub(1);
        if (yields_.load()) futex_wake_all(waiting_);
    }
    void unlock() { mutex_.unlock(); }
    bool is_wanted() const { return waiting_.load() > 0; }

    // For the thread that decides. Those who wait by now go first, if they come within a moment: it decides for
    // programs, which do not wait for a thread that gets no processor.
    void lock_after_others() {
        if (const uint32_t waiting = waiting_.load(); waiting > 0) {
            yields_.store(true);
            futex_wait(waiting_, waiting, moment_);
            yields_.store(false);
        }
        mutex_.lock();
    }

  private:
    const uint64_t moment_;
    std::mutex mutex_;
    std::atomic<uint32_t> waiting_{0};  // futex word
    std::atomic<bool> yields_{false};
};

}  // namespace gemlet::server
