// Memory that the driver keeps in store for several requests: a pool, the memory of graphs. What a request makes it
// grow by is charged before. While others are under way it is not known what of the store is theirs, so that a
// request which finds too little looks again.
#pragma once

#include <cstdint>

#include "hook/link/clock.h"
#include "hook/memory/accounting.h"

namespace gemlet::hook {

struct Growth {
    uint64_t bytes = 0;    // that the store will have to grow by
    uint64_t pending = 0;  // for requests that were under way already
};

// `begin` finds the growth and counts this request as under way; `cancel` no longer does. False: over the limit.
template <class Begin, class Cancel>
bool charge_growth(CUdevice device, Begin&& begin, Cancel&& cancel) {
    constexpr uint64_t kLongEnough = 200'000'000, kLookAgain = 1'000'000;
    for (uint64_t since = 0;; sleep_ns(kLookAgain)) {
        const Growth growth = begin();
        if (charge(device, growth.bytes)) [[likely]]
            return true;
        cancel();
        const uint64_t now = now_ns();
        if (since == 0) since = now;
        if (growth.pending == 0 || now - since > kLongEnough) return false;
    }
}

}  // namespace gemlet::hook
