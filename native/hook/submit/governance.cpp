#include "hook/submit/governance.h"

#include "futex.h"
#include "hook/link/clock.h"
#include "hook/link/connection.h"

namespace gemlet::hook {

Governance governance(const Device* device) {
    const Destination& d = destination();
    if (!d.socket[0]) return Governance::kUnmanaged;
    if (device && device->is_daemons(*device->page.load(std::memory_order_acquire))) return Governance::kManaged;
    if (device && device->ledger) return Governance::kOrphaned;
    return d.strict ? Governance::kRefused : Governance::kUnlimited;
}

bool work_passes_unmanaged() {
    return !destination().socket[0] || !destination().strict;
}

bool out_of_patience(const Device& device) {
    return now_ns() - device.unmanaged_since.load() > destination().patience_s * uint64_t{1'000'000'000};
}

bool await_daemon(Device* device) {
    if (!device) return false;
    constexpr uint64_t kLookAgain = 100'000'000;
    for (;;) {
        if (device->is_daemons(*device->page.load(std::memory_order_acquire))) return true;
        if (out_of_patience(*device)) return false;
        // Woken when a daemon has attached it.
        futex_wait(device->unmanaged.token, device->unmanaged.token.load(), kLookAgain);
    }
}

}  // namespace gemlet::hook
