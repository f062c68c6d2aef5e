// Frees that are not complete yet become so without a call of the program's, which may never allocate again while
// others wait for the memory. So a thread looks until there are none.
#include <algorithm>
#include <atomic>

#include "hook/link/clock.h"
#include "hook/lookup/own_thread.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"

namespace gemlet::hook {

namespace {

std::atomic<uint32_t> asked{0};  // how often await_frees() was called; 0: the thread does not run

void* look_again(void*) {
    constexpr uint64_t kFirst = 1'000'000, kMost = 100'000'000;
    begin_own_thread("gemlet");
    const Reentry reentry;
    for (uint64_t wait = kFirst;; wait = std::min(2 * wait, kMost)) {
        sleep_ns(wait);
        uint32_t before = asked.load();
        refresh_destroyed_pools();  // each asks again for what is left
        refresh_freed_later();
        if (asked.compare_exchange_strong(before, 0)) return nullptr;
    }
}

}  // namespace

void await_frees() {
    if (asked.fetch_add(1) == 0 && !start_own_thread(look_again, nullptr)) asked = 0;
}

void forget_awaited_frees() {
    asked = 0;
}

}  // namespace gemlet::hook
