// Members of a group that claim memory at the same time, one of them stopped while it has the lock. Exits with 1 and
// names the first error.
#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"
#include "hook/submit/ledger_lock.h"

using namespace gemlet;

namespace {

constexpr uint64_t kLimit = 100;

struct Group {
    wire::GroupLedger ledger{};

    uint64_t used() const {
        uint64_t total = 0;
        for (const auto& slot : ledger.slots) total += slot.used.load(std::memory_order_relaxed);
        return total;
    }
    // `stop`: is called where a member may be stopped, when it has found that its claim fits.
    bool claim(uint32_t slot, uint64_t bytes, const std::function<void()>& stop = [] {}) {
        auto& mine = ledger.slots[slot].used;
        const uint64_t before = mine.load();
        return hook::claim_within_limit(
            ledger, slot,
            [&] {
                const bool fits = used() + bytes <= kLimit;
                if (fits) stop();
                return fits;
            },
            [&] { mine.store(before + bytes, std::memory_order_release); },
            [&] { mine.store(before, std::memory_order_release); });
    }
};

void await(const std::atomic<bool>& flag) {
    while (!flag.load()) std::this_thread::yield();
}

// Of two that fit one at a time, one has the memory, whichever of them is stopped and for however long.
void one_that_is_stopped_does_not_pass_the_limit() {
    Group group;
    std::atomic<bool> inside{false}, go_on{false};
    int stops = 0;
    bool stopped_has_it = true;
    std::thread stopped([&] {
        stopped_has_it = group.claim(0, 60, [&] {
            if (stops++ > 0) return;
            inside = true;
            await(go_on);
        });
    });
    await(inside);
    CHECK(group.claim(1, 60));  // does not wait for ever
    go_on = true;
    stopped.join();
    CHECK(!stopped_has_it);
    CHECK(group.ledger.slots[0].used == 0);
    CHECK(group.used() == 60);
    CHECK(group.ledger.lock == 0);
}

// What still fits is had when the member goes on.
void one_that_is_stopped_gets_what_is_left() {
    Group group;
    std::atomic<bool> inside{false}, go_on{false};
    int stops = 0;
    bool stopped_has_it = false;
    std::thread stopped([&] {
        stopped_has_it = group.claim(0, 30, [&] {
            if (stops++ > 0) return;
            inside = true;
            await(go_on);
        });
    });
    await(inside);
    CHECK(group.claim(1, 60));
    go_on = true;
    stopped.join();
    CHECK(stopped_has_it && stops == 2);
    CHECK(group.used() == 90);
}

// All the time in each other's way, with locks that are taken from members in the midst of it.
void many_at_once_stay_within_the_limit() {
    constexpr uint32_t kMembers = 4;
    Group group;
    std::atomic<uint64_t> granted{0};
    std::atomic<bool> over{false}, done{false};
    std::vector<std::thread> members;
    for (uint32_t slot = 0; slot < kMembers; ++slot)
        members.emplace_back([&, slot] {
            for (int i = 0; i < 20'000; ++i) {
                if (!group.claim(slot, 40)) continue;
                if (granted.fetch_add(40) + 40 > kLimit) over = true;
                granted.fetch_sub(40);
                group.ledger.slots[slot].used.store(0, std::memory_order_release);
            }
        });
    std::thread thief([&] {
        for (uint32_t owner = 0; !done; owner = (owner + 1) % (kMembers + 1)) {
            uint32_t expected = owner;
            if (owner) group.ledger.lock.compare_exchange_strong(expected, 0);
            std::this_thread::yield();
        }
    });
    for (auto& member : members) member.join();
    done = true;
    thief.join();
    CHECK(!over);
    CHECK(group.used() == 0);
}

}  // namespace

int main() {
    one_that_is_stopped_does_not_pass_the_limit();
    one_that_is_stopped_gets_what_is_left();
    many_at_once_stay_within_the_limit();
    return 0;
}
