// Threads of the program that wait for a device: in the driver (submit/waits.cpp), in the hook itself, or by asking
// the driver again and again whether something is done.
//
// A busy device slows a program down only while the program waits for it; the watcher's samples show when it does.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "hook/link/clock.h"
#include "hook/link/system_calls.h"
#include "hook/lookup/reentry.h"

namespace gemlet::hook {

class Waits {
  public:
    // A program that polls is taken to wait for this long after each answer "not ready".
    static constexpr uint64_t kPolling = 1'000'000;
    // A program that was not seen to wait for this long may wait in a way that the hook cannot see, say for a word
    // in its memory that a kernel writes. It then counts as waiting all the time.
    static constexpr uint64_t kUnseen = 1'000'000'000;

    // `surely`: the thread is known to wait for the device. Otherwise it may wait, which counts only if a look
    // finds it there.
    void begin(bool surely) { word_.fetch_add(surely ? kEntry + 1 : kPerhaps, std::memory_order_relaxed); }
    void end(bool surely) {
        word_.fetch_sub(surely ? 1 : kPerhaps, std::memory_order_relaxed);
        ended_at_.store(now_ns(), std::memory_order_relaxed);
    }
    // A thread is in a call that may wait, such as a copy to memory that is not pinned. While it does, the driver
    // lets nobody record an event on the stream: a look that marks what was launched takes as long as the wait.
    bool in_copy() const { return uint32_t(word_.load(std::memory_order_relaxed)) >= kPerhaps; }
    void not_ready(uint64_t now) { polling_until_.store(now + kPolling, std::memory_order_relaxed); }

    // When a thread was last seen to wait; 0: never.
    uint64_t last(uint64_t now) const {
        if (uint32_t(word_.load(std::memory_order_relaxed)) != 0) return now;
        const uint64_t polling_until = polling_until_.load(std::memory_order_relaxed);
        return std::max(ended_at_.load(std::memory_order_relaxed), polling_until - std::min(polling_until, kPolling));
    }

    // True if a thread waits now. For the watcher alone, at each of its looks.
    bool look(uint64_t now) {
        const uint64_t word = word_.load(std::memory_order_relaxed);
        const uint64_t polling_until = polling_until_.load(std::memory_order_relaxed);
        const bool waits = uint32_t(word) != 0 || polling_until > now;
        if (waits || word >> 32 != word_seen_ >> 32 || polling_until != polling_seen_) unseen_from_ = now + kUnseen;
        word_seen_ = word;
        polling_seen_ = polling_until;
        return waits || now >= unseen_from_;
    }

  private:
    static constexpr uint64_t kEntry = uint64_t(1) << 32, kPerhaps = uint64_t(1) << 16;
    alignas(64) std::atomic<uint64_t> word_{0};  // sure waits so far << 32 | perhaps wait now << 16 | surely wait now
    std::atomic<uint64_t> polling_until_{0};
    std::atomic<uint64_t> ended_at_{0};
    uint64_t word_seen_ = 0, polling_seen_ = 0, unseen_from_ = 0;
};

class Waiting {
  public:
    explicit Waiting(Waits* waits, bool surely = true) : waits_(waits), surely_(surely) {
        if (waits_) waits_->begin(surely);
    }
    ~Waiting() {
        if (waits_) waits_->end(surely_);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

  private:
    Waits* const waits_;
    const bool surely_;
};

// Those of the calling thread's current device; null if nothing was submitted to it so far.
Waits* waits_here();

// Makes a driver call that returns when the device has done something, `surely` or perhaps.
template <class Call>
auto wait_in(Call&& call, bool surely = true) {
    const Reentry reentry;
    const Uncancelled uncancelled;
    const Waiting waiting(reentry.nested() ? nullptr : waits_here(), surely);
    return call();
}

}  // namespace gemlet::hook
