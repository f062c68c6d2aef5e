// Reserving device memory against the group's limit, before the driver is asked.
//
// Each process owns one slot of the group's ledger and is the only one to write it. A reservation holds the ledger's
// lock (ledger_lock.h) while it sums the slots in use and stores its own: about 50 ns for a group of a few processes.
// A process that dies leaves at worst the lock, which the daemon frees when it clears the slot.
#include "hook/memory/ledger.h"

#include <algorithm>
#include <climits>
#include <cstdio>

#include "futex.h"
#include "hook/link/clock.h"
#include "hook/link/connection.h"
#include "hook/link/say.h"
#include "hook/link/version.h"
#include "hook/memory/limit_hint.h"
#include "hook/submit/device.h"
#include "hook/submit/governance.h"
#include "hook/submit/ledger_lock.h"

namespace gemlet::hook {

namespace {

constexpr uint32_t kNoSlot = UINT32_MAX;

// Of all slots in use but one.
uint64_t used_by_group(const wire::GroupLimits& limits, const wire::GroupLedger& ledger, uint32_t but = kNoSlot) {
    uint64_t total = limits.untracked.load(std::memory_order_acquire);
    const uint32_t slots = limits.slot_count.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < slots && i < wire::kLedgerSlots; ++i)
        if (i != but) total += ledger.slots[i].used.load(std::memory_order_relaxed);
    return total;
}

// Whether what this process holds counts by its slot. The daemon keeps that for as long as the process lives, also
// without a connection; of one that followed it, this process finds another ledger, or what it wrote.
bool has_slot(const Device& device) {
    if (device.slot >= device.limits->slot_count.load(std::memory_order_acquire)) return false;
    return governance(&device) == Governance::kManaged ||
           device.ledger->slots[device.slot].used.load(std::memory_order_acquire) == device.published;
}

void publish_used(Device& device) {
    if (!device.ledger || !has_slot(device)) return;
    device.ledger->slots[device.slot].used.store(device.used, std::memory_order_release);
    device.published = device.used;
}

// On an H200 with driver 580 a context takes 498 MiB, with the modules of PyTorch somewhat more.
constexpr uint64_t kUnknownContext = 512 << 20;

// What the daemon counts besides the slot, as far as this process knows it by itself.
uint64_t untracked_here(const Device& device) {
    const uint64_t estimate = device.limits->context_estimate.load(std::memory_order_relaxed);
    const uint64_t contexts = uint64_t(std::max(device.contexts.load(), 0)) * (estimate ? estimate : kUnknownContext);
    return contexts - std::min(contexts, device.room_made.load());
}

// Never less than this process holds itself.
uint64_t used_by_group(const Device& device) {
    if (has_slot(device)) return used_by_group(*device.limits, *device.ledger, device.slot) + device.used;
    return used_by_group(*device.limits, *device.ledger) + device.used + untracked_here(device);
}

struct Size {
    explicit Size(uint64_t bytes) {
        const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
        double value = double(bytes);
        int unit = 0;
        while (value >= 1024 && unit < 4) value /= 1024, ++unit;
        std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    }
    char text[32];
};

const char* name_of(Wanted wanted) {
    return wanted == Wanted::kContext ? "a context" : "an allocation";
}

void explain(Device& device, uint64_t bytes, Wanted wanted, uint64_t used, uint64_t limit, uint64_t contexts) {
    constexpr uint64_t kSomeBeside = 1ull << 30;  // a context alone is of no use
    wire::Message m{};
    m.header = header(wire::MessageType::kRefused, device.wire_index.load());
    m.value = bytes;
    send(m);
    const char* group = joined_group();
    char most[96] = "";
    if (contexts >= limit) std::snprintf(most, sizeof most, ", its contexts alone take %s", Size(contexts).text);
    const LimitHint hint("--memory", used + bytes + (wanted == Wanted::kContext ? kSomeBeside : 0));
    say_once(Topic::kMemory, "%s of %s would pass the %s limit of group '%s' on GPU %d (%s in use%s)\n  hint: %s",
             name_of(wanted), Size(bytes).text, Size(limit).text, group, device.ordinal, Size(used).text, most,
             hint.text);
}

// A process that was frozen may come back when the daemon is another one, and its watcher, which was frozen as well,
// has yet to find out.
void catch_up(Device& device) {
    constexpr uint64_t kFrozen = 600'000'000;
    const uint64_t now = now_ns();
    uint64_t looked = device.looked_at.load(std::memory_order_relaxed);
    if (looked == 0 || now - std::min(now, looked) < kFrozen) [[likely]]
        return;
    if (device.is_daemons(*device.page.load(std::memory_order_acquire)) && !connected()) lost();
    device.looked_at.compare_exchange_strong(looked, now);
}

// With a daemon that has yet to learn what others of the group hold.
class Patience {
  public:
    // False: it is at an end.
    bool step() {
        constexpr uint64_t kLongest = 10'000'000'000, kStep = 1'000'000;
        const uint64_t now = now_ns();
        if (!since_) since_ = now;
        if (now - since_ > kLongest) return false;
        sleep_ns(kStep);
        return true;
    }

  private:
    uint64_t since_ = 0;
};

// Of a context that was just made, the room that its program keeps and what the daemon accounts for count both, until
// the program has given the room back. So what finds too little left meanwhile is not refused, but looks again.
class SecondLook {
  public:
    // Whether it may find more than the last one, at which the daemon had added something at `added`; waits before.
    bool may_help(uint64_t added) {
        constexpr uint64_t kLookAgain = 5'000'000, kLongEnough = 200'000'000, kAltogether = 2'000'000'000;
        const uint64_t now = now_ns();
        if (since_ == 0) since_ = now;
        if (now - std::min(now, added) > kLongEnough || now - since_ > kAltogether) return false;
        sleep_ns(kLookAgain);
        return true;
    }

  private:
    uint64_t since_ = 0;
};

enum class Reservation : uint8_t { kMade, kRefused, kOverLimit, kNotHere };
struct Found {
    uint64_t used, limit, contexts, added;
    bool is_open, is_unsettled;  // the ledger
};

Reservation try_reserve(Device& device, uint64_t bytes, Found& found) {
    std::lock_guard lock(device.ledger_mutex);
    if (governance(&device) == Governance::kRefused) return Reservation::kRefused;
    if (!device.ledger) {
        device.used += bytes;
        return Reservation::kMade;
    }
    const auto fits = [&] {
        const auto state = wire::LedgerState(device.limits->held.load());
        found.is_open = device.ledger->closed.load() == 0 && state != wire::LedgerState::kHeld;
        found.is_unsettled = state == wire::LedgerState::kUnsettled;
        found.used = used_by_group(device);
        found.limit = device.limits->memory_limit.load(std::memory_order_relaxed);
        found.contexts = device.limits->untracked.load(std::memory_order_relaxed);
        found.added = device.limits->added_ns.load(std::memory_order_relaxed);
        return found.is_open && bytes <= found.limit && found.used <= found.limit - bytes;
    };
    const auto hold = [&](uint64_t used) {
        device.used = used;
        publish_used(device);
    };
    const uint64_t before = device.used;
    const bool is_made =
        claim_within_limit(*device.ledger, device.slot, fits, [&] { hold(before + bytes); }, [&] { hold(before); });
    if (is_made) return Reservation::kMade;
    return found.is_open ? Reservation::kOverLimit : Reservation::kNotHere;
}

// Whether its ledger is that of the daemon that governs now, as far as this process can tell.
enum class Place : uint8_t { kRight, kUnknown, kTurnedAway };

// Others of the group may have joined the daemon that came after the one of this process' ledger. They count there;
// so it joins before it holds more.
Place place(Device& device) {
    catch_up(device);
    if (governance(&device) != Governance::kOrphaned || device.silent.load()) [[likely]]
        return Place::kRight;
    switch (join_successor(device)) {
        case Successor::kNone:
        case Successor::kJoined:
            return Place::kRight;
        case Successor::kTurnsAway:
            return Place::kTurnedAway;
        case Successor::kSilent:
            break;
    }
    // One that no daemon has governed so far has none to share a ledger with.
    return device.ledger == &device.known_ledger ? Place::kRight : Place::kUnknown;
}

// A daemon that hangs up has let this process go, or all of its group: others of it may count elsewhere by now, and
// what is left in this ledger says nothing. Whether the process is to look again.
bool has_lost_its_place(Device& device) {
    if (!device.is_daemons(*device.page.load(std::memory_order_acquire)) || connected()) return false;
    lost();
    return device.is_daemons(*device.page.load(std::memory_order_acquire)) ||
           join_successor(device) == Successor::kJoined;
}

bool refuse_unsure(uint64_t bytes, Wanted wanted) {
    say_once(Topic::kMemory,
             "%s of %s is refused: the daemon does not say what is left of the limit of group '%s'\n  "
             "hint: see in its log why it does not answer, or does not govern this program",
             name_of(wanted), Size(bytes).text, joined_group());
    return false;
}

}  // namespace

bool memory_reserve(CUdevice ordinal, uint64_t bytes, Wanted wanted) {
    Device* device = device_for(ordinal);
    if (governance(device) == Governance::kRefused && !await_daemon(device)) return false;
    if (!device) return true;  // nothing governs it, or there is no such device and the driver will say so
    Found found{};
    SecondLook again;
    for (Patience patience;;) {
        const Place where = place(*device);
        if (where == Place::kUnknown) return refuse_unsure(bytes, wanted);
        switch (try_reserve(*device, bytes, found)) {
            case Reservation::kMade:
                return true;
            case Reservation::kOverLimit:
                if (has_lost_its_place(*device) || again.may_help(found.added)) continue;
                if (found.is_unsettled && patience.step()) continue;
                explain(*device, bytes, wanted, found.used, found.limit, found.contexts);
                return false;
            case Reservation::kNotHere:
                if (has_lost_its_place(*device)) continue;
                if (where == Place::kTurnedAway || !patience.step()) return refuse_unsure(bytes, wanted);
                continue;
            case Reservation::kRefused:
                if (!await_daemon(device)) return false;
        }
    }
}

void memory_account(CUdevice ordinal, uint64_t bytes) {
    Device* device = device_for(ordinal);
    if (!device) return;
    std::lock_guard lock(device->ledger_mutex);
    device->used += bytes;
    publish_used(*device);
}

void memory_release(CUdevice ordinal, uint64_t bytes) {
    Device* device = device_for(ordinal);
    if (!device) return;
    std::lock_guard lock(device->ledger_mutex);
    device->used -= bytes < device->used ? bytes : device->used;
    publish_used(*device);
}

MemoryView memory_view(CUdevice ordinal) {
    Device* device = device_for(ordinal);
    if (!device) return {wire::kNoLimit, 0};
    std::lock_guard lock(device->ledger_mutex);
    if (!device->ledger) return {wire::kNoLimit, device->used};
    return {device->limits->memory_limit.load(std::memory_order_relaxed), used_by_group(*device)};
}

MemoryView memory_view(const CUuuid& uuid) {
    client_start();
    constexpr uint32_t kNoOrdinal = kMaxDevices;
    auto attachment = attach(reinterpret_cast<const unsigned char (&)[16]>(uuid.bytes), kNoOrdinal);
    if (!attachment) return {destination().memory_limit, 0};
    return {attachment->limits->memory_limit.load(std::memory_order_relaxed),
            used_by_group(*attachment->limits, *attachment->ledger)};
}

namespace {

bool contexts_accounted(const Device& device) {
    if (device.contexts == 0) return true;
    const wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
    return device.is_daemons(page) && page.contexts.load(std::memory_order_acquire) == uint32_t(device.contexts);
}

void await_contexts_accounted(const Device& device, uint64_t long_enough) {
    constexpr uint64_t kLookAgain = 20'000'000;
    for (uint64_t begin = now_ns(); now_ns() - begin < long_enough;) {
        const wire::ClientPage& page = *device.page.load(std::memory_order_acquire);
        if (!device.is_daemons(page)) return;
        const uint32_t accounted = page.contexts.load(std::memory_order_acquire);
        if (accounted == uint32_t(device.contexts)) return;
        futex_wait(page.contexts, accounted, kLookAgain);
    }
}

// Under the device's lock.
void publish_room(Device& device) {
    wire::ClientPage* silent = device.silent.load();  // the daemon's, while that does not answer
    wire::ClientPage& page = silent ? *silent : *device.page.load();
    page.room.store(device.room_making + device.room_made.load(), std::memory_order_release);
}

}  // namespace

void announce_room(CUdevice ordinal, uint64_t bytes) {
    Device* device = device_for(ordinal);
    if (!device || bytes == 0) return;
    std::lock_guard lock(device->ledger_mutex);
    device->room_making += bytes;
    publish_room(*device);
}

void cancel_room(CUdevice ordinal, uint64_t bytes) {
    Device* device = device_for(ordinal);
    if (!device || bytes == 0) return;
    std::lock_guard lock(device->ledger_mutex);
    device->room_making -= std::min(bytes, device->room_making);
    publish_room(*device);
}

void keep_room(CUdevice ordinal, uint64_t bytes, bool others_wait) {
    constexpr uint64_t kLongEnough = 200'000'000, kForOthers = 2'000'000'000;
    Device* device = device_for(ordinal);
    if (!device) return;
    {
        std::lock_guard lock(device->ledger_mutex);
        device->room_making -= std::min(bytes, device->room_making);
        device->room_made.fetch_add(bytes);
    }
    await_contexts_accounted(*device, others_wait ? kForOthers : kLongEnough);
    std::lock_guard lock(device->ledger_mutex);
    if (bytes > 0 || !device->ledger || contexts_accounted(*device)) return;
    // Its size is neither accounted for nor known.
    device->room_made.fetch_add(kUnknownContext);
    publish_room(*device);
    device->used += kUnknownContext;
    publish_used(*device);
}

uint64_t release_room(CUdevice ordinal) {
    Device* device = device_for(ordinal);
    if (!device || device->room_made.load(std::memory_order_relaxed) == 0) [[likely]]
        return 0;
    std::lock_guard lock(device->ledger_mutex);
    if (!contexts_accounted(*device)) return 0;
    const uint64_t bytes = std::min(device->room_made.exchange(0), device->used);
    device->used -= bytes;
    publish_used(*device);
    publish_room(*device);
    return bytes;
}

uint64_t context_estimate(CUdevice ordinal) {
    Device* device = device_for(ordinal);
    if (!device) return 0;
    std::lock_guard lock(device->ledger_mutex);
    const uint64_t known = device->limits ? device->limits->context_estimate.load(std::memory_order_relaxed) : 0;
    if (known > 0) return known;
    if (governance(device) == Governance::kOrphaned) return kUnknownContext;
    // A daemon that governs measures the first one and says so before it goes on.
    const uint64_t limit =
        device->ledger ? device->limits->memory_limit.load(std::memory_order_relaxed) : wire::kNoLimit;
    if (limit == wire::kNoLimit) return 0;
    // What others hold beyond their allocations has at least one context in it.
    const uint64_t theirs = device->limits->untracked.load(std::memory_order_relaxed);
    if (theirs > 0) return std::min(theirs, kUnknownContext);
    const uint64_t used = used_by_group(*device);
    return used < limit ? std::min(limit - used, kUnknownContext) : kUnknownContext;
}

}  // namespace gemlet::hook
