// Keeps submissions and moving memory apart. Threads pass it around each check of the token and the submission
// behind it; the thread that moves memory closes it and waits until no thread is inside. Without it a thread that
// was preempted between the two would submit work on memory that has just gone.
//
// Passing costs two uncontended atomic additions on a cache line of the thread's own. It also ends what the program
// declared of its memory (swap/declare.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "futex.h"
#include "hook/link/clock.h"

namespace gemlet::hook {

struct SwapSpace;

// Devices of this process with movable memory.
extern constinit std::atomic<int> swap_devices;

class MoveGate {
  public:
    explicit MoveGate(SwapSpace* space) : space_(space) {}
    SwapSpace& space() const { return *space_; }
    bool has_space() const { return space_ != nullptr; }  // else it is never closed

    // False if it is closed: then the thread is not inside. A thread inside may enter again: the driver may call its
    // own exported functions, which are ours.
    bool enter() {
        if (held_.gate == this) {
            ++held_.depth;
            lapse();
            return true;
        }
        mine().fetch_add(1, std::memory_order_seq_cst);
        if (closed_.load(std::memory_order_seq_cst) == 0) [[likely]] {
            lapse();
            if (!held_.gate) held_ = {this, 1};
            return true;
        }
        mine().fetch_sub(1, std::memory_order_release);
        return false;
    }
    void leave() {
        if (held_.gate == this) {
            if (--held_.depth > 0) return;
            held_.gate = nullptr;
        }
        mine().fetch_sub(1, std::memory_order_release);
    }

    void close() { closed_.store(1, std::memory_order_seq_cst); }
    bool closed() const { return closed_.load(std::memory_order_seq_cst) != 0; }
    void open() {
        closed_.store(0, std::memory_order_seq_cst);
        futex_wake_all(closed_);
    }
    // After close(): true as soon as nobody is inside.
    bool await_empty(uint64_t at_most_ns) const {
        const uint64_t end = now_ns() + at_most_ns;
        for (const Slot& slot : slots_)
            while (slot.inside.load(std::memory_order_acquire) != 0) {
                if (now_ns() > end) return false;
                sleep_ns(20'000);
            }
        return true;
    }
    bool wait_for_change(uint64_t at_most_ns) { return futex_wait(closed_, 1, at_most_ns) == 0 || !closed(); }

    // A ticket is good until the next submission enters (swap/declare.h). A thread that finds no other inside has
    // seen it go.
    void give_ticket(uint64_t ticket) { ticket_.store(ticket, std::memory_order_seq_cst); }
    uint64_t ticket() const { return ticket_.load(std::memory_order_seq_cst); }

  private:
    void lapse() {
        if (ticket_.load(std::memory_order_relaxed) != 0) [[unlikely]]
            ticket_.store(0, std::memory_order_relaxed);
    }
    struct alignas(64) Slot {
        std::atomic<uint32_t> inside{0};
    };
    std::atomic<uint32_t>& mine() {
        static std::atomic<uint32_t> threads{0};
        static thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed);
        return slots_[number % slots_.size()].inside;
    }
    struct Held {
        const MoveGate* gate;
        uint32_t depth;
    };
    static inline thread_local constinit Held held_{nullptr, 0};

    SwapSpace* const space_;
    std::array<Slot, 64> slots_;
    alignas(64) std::atomic<uint32_t> closed_{0};
    std::atomic<uint64_t> ticket_{0};  // on the same line: both are read by all, and hardly ever written
};

// A copy may touch several devices' memory: past the gates of the others, too. Which these are, a bit each; none: one
// was closed and is open now, and the thread is inside no gate, not even the one it had entered.
std::optional<uint64_t> swap_enter_others(MoveGate& entered);
void swap_leave_others(uint64_t others);

// Returns when the gate is open, having said that this thread waits.
void swap_await_open(MoveGate& gate);

}  // namespace gemlet::hook
