// The driver may call its own exported symbols, which are ours now: such inner calls pass straight through, or one
// allocation would be counted twice and a lock taken twice.
//
// A program may jump out of a call (longjmp in a signal handler), so that this never hears of its end. What comes
// later on that thread must not pass for an inner call: one is inner only if the outer one is further up the stack
// and what marks it there is untouched.
#pragma once

#include <cstdint>

namespace gemlet::hook {

class Reentry {
  public:
    [[gnu::always_inline]] Reentry()
        : frame_(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))), outer_(innermost_alive(frame_)) {
        mark_ = mark();
        inside = this;
    }
    ~Reentry() {
        inside = outer_;
        mark_ = 0;
    }
    Reentry(const Reentry&) = delete;
    Reentry& operator=(const Reentry&) = delete;

    bool nested() const { return outer_ != nullptr; }

  private:
    // Where it was there may be anything by now, or what sanitizers guard.
    [[gnu::noinline]] __attribute__((no_sanitize("address", "thread"))) static const Reentry* innermost_alive(
        uintptr_t frame) {
        const Reentry* last = inside;
        return last && last->mark_ == last->mark() && last->frame_ > frame ? last : nullptr;
    }
    __attribute__((no_sanitize("address", "thread"))) uint64_t mark() const {
        return reinterpret_cast<uintptr_t>(this) ^ 0x67656d6c6574'0001;
    }

    static inline thread_local constinit const Reentry* inside = nullptr;
    const uintptr_t frame_;
    const Reentry* const outer_;
    volatile uint64_t mark_;
};

}  // namespace gemlet::hook
