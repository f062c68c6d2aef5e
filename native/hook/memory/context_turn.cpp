#include "hook/memory/context_turn.h"

#include <mutex>

#include "futex.h"
#include "hook/link/clock.h"
#include "hook/submit/device.h"
#include "hook/submit/governance.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kTakenAfter = 5'000'000'000, kLookAgain = 20'000'000;

// Under the device's `ledger_mutex`. Without a daemon everybody reserves enough for any context.
bool is_needed(const Device& device) {
    constexpr auto relaxed = std::memory_order_relaxed;
    return governance(&device) == Governance::kManaged && device.ledger &&
           device.limits->memory_limit.load(relaxed) != wire::kNoLimit &&
           device.limits->context_estimate.load(relaxed) == 0;
}

}  // namespace

ContextTurn::ContextTurn(CUdevice ordinal) {
    Device* device = device_for(ordinal);
    if (!device) return;
    if (governance(device) == Governance::kRefused) await_daemon(device);  // which knows more than nobody
    uint32_t last = 0;
    for (uint64_t since = now_ns();;) {
        wire::GroupLedger* ledger = nullptr;
        {
            std::lock_guard lock(device->ledger_mutex);
            if (!is_needed(*device)) return;
            ledger = device->ledger;
            mine_ = device->slot + 1;
        }
        uint32_t holder = 0;
        bool taken = ledger->turn.compare_exchange_strong(holder, mine_);
        if (!taken && holder == last && now_ns() - since > kTakenAfter)
            taken = ledger->turn.compare_exchange_strong(holder, mine_);
        if (taken) {
            ledger_ = ledger;
            return;
        }
        if (holder != last) since = now_ns();
        last = holder;
        futex_wait(ledger->turn, holder, kLookAgain);
    }
}

ContextTurn::~ContextTurn() {
    if (!ledger_) return;
    uint32_t mine = mine_;
    ledger_->turn.compare_exchange_strong(mine, 0);
    futex_wake_all(ledger_->turn);
}

}  // namespace gemlet::hook
