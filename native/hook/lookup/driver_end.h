// The end of the driver. It is torn down by a handler for the program's exit that the real cuInit registers, and a
// call of another thread crashes now and then while that runs. The hook registers a handler behind it, which thus
// runs just before it: from then on no call that the hook makes for itself reaches the driver, but for those of the
// thread that ends the program, which makes them in calls of its own.
//
// _exit(), quick_exit() and signals run no such handler, of the driver's neither.
#pragma once

#include <atomic>
#include <cstdint>

namespace gemlet::hook {

enum class ThreadKind : uint8_t {
    kProgram,
    kHook,   // the hook's
    kEnding  // runs the handlers of the program's exit
};
inline thread_local constinit ThreadKind thread_kind = ThreadKind::kProgram;

inline constinit std::atomic<bool> driver_ends{false};

// The calling thread may not call the driver any more for the hook's own purposes.
inline bool is_barred() {
    return driver_ends.load(std::memory_order_relaxed) && thread_kind != ThreadKind::kEnding;
}

// Around calls of the driver that a thread of the hook may make: the handler waits until they are over.
class DriverVisit {
  public:
    DriverVisit() : counted_(thread_kind == ThreadKind::kHook) {
        if (counted_) visitors_.fetch_add(1, std::memory_order_seq_cst);
        admitted_ = !driver_ends.load(std::memory_order_seq_cst) || thread_kind == ThreadKind::kEnding;
    }
    ~DriverVisit() {
        if (counted_) visitors_.fetch_sub(1, std::memory_order_release);
    }
    DriverVisit(const DriverVisit&) = delete;
    DriverVisit& operator=(const DriverVisit&) = delete;
    explicit operator bool() const { return admitted_; }

    static uint32_t visitors() { return visitors_.load(std::memory_order_seq_cst); }
    static void forget_visitors() { visitors_.store(0); }

  private:
    static inline constinit std::atomic<uint32_t> visitors_{0};
    const bool counted_;
    bool admitted_;
};

// Registers the handler, once in a process: as soon as cuInit has returned.
void watch_driver_end();
// Once more where the first thread of the hook starts: the program may have called cuInit past the hook, and a driver
// may register its own handler with the first context.
void watch_driver_end_by_thread();
void driver_ends_in_child();  // nothing of the parent's holds in a forked child

}  // namespace gemlet::hook
