// The lock of a group's ledger, which keeps two members from passing the limit together.
//
// A member that is stopped inside it must not stop its group, so it loses the lock after a while. Therefore nothing
// rests on the lock alone: a member writes what it claims and looks afterwards whether the lock was its own until
// then. If it was, the member that has the lock next sees the claim. If not, others may have looked before the claim
// was there; so it takes the claim back and begins anew.
#pragma once

#include <sched.h>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "hook/link/clock.h"
#include "wire.h"

namespace gemlet::hook {

class LedgerLock {
  public:
    LedgerLock(wire::GroupLedger& ledger, uint32_t slot) : lock_(ledger.lock), mine_(slot + 1) {
        take();
        std::atomic_thread_fence(std::memory_order_seq_cst);  // with that of is_still_mine()
    }
    ~LedgerLock() {
        uint32_t mine = mine_;
        lock_.compare_exchange_strong(mine, 0);
    }
    LedgerLock(const LedgerLock&) = delete;
    LedgerLock& operator=(const LedgerLock&) = delete;

    // Whether the member that has it after this call sees all that was written before it.
    bool is_still_mine() const {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        return lock_.load() == mine_;
    }

  private:
    static constexpr uint64_t kPatience = 100'000'000;

    void take() {
        uint64_t since = 0;
        for (int tries = 0;; ++tries) {
            uint32_t owner = 0;
            if (lock_.compare_exchange_weak(owner, mine_)) return;
            if (tries < 64) continue;
            // The owner was preempted (or stopped, or died a moment ago) inside a few instructions.
            if (tries < 128) {
                sched_yield();
                continue;
            }
            const uint64_t now = now_ns();
            if (since == 0) since = now;
            if (now - since > kPatience && owner && lock_.compare_exchange_strong(owner, mine_)) return;
            sleep_ns(50'000);
        }
    }

    std::atomic<uint32_t>& lock_;
    const uint32_t mine_;
};

// `fits` sums what the group holds; `claim` writes what this member holds with the new memory, `take_back` without
// it.
template <class Fits, class Claim, class TakeBack>
bool claim_within_limit(wire::GroupLedger& ledger, uint32_t slot, Fits&& fits, Claim&& claim, TakeBack&& take_back) {
    for (;;) {
        const LedgerLock lock(ledger, slot);
        if (!fits()) return false;
        claim();
        if (lock.is_still_mine()) return true;
        take_back();
    }
}

// From now on no member takes more there. What is in it: slots and bytes.
inline std::vector<std::pair<uint32_t, uint64_t>> close_ledger(wire::GroupLedger& ledger, uint32_t slot) {
    const LedgerLock lock(ledger, slot);
    ledger.closed.store(1);
    std::vector<std::pair<uint32_t, uint64_t>> held;
    for (uint32_t i = 0; i < wire::kLedgerSlots; ++i)
        if (const uint64_t used = ledger.slots[i].used.load()) held.emplace_back(i, used);
    return held;
}

}  // namespace gemlet::hook
