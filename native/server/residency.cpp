// Memory that moves, in real time: clients' reports go into Residency, its orders go into their pages, and a
// client whose memory is not on the device does not get the token.
//
// A client that writes what it likes makes no more of others' memory leave than one that has it: what a group's
// programs claim together and the driver does not confirm is no more than the group may have.
//
// A client's fixed memory is what its ledger has beyond what it says can move, and what the driver holds beyond
// that; what the driver does not confirm is not believed for long (unconfirmed.hpp). The client says first that
// memory can move and charges it then, so during a change too little of it counts as fixed, never too much, which
// would make others leave for nothing.
#include <algorithm>
#include <utility>

#include "arbiter/saturating.hpp"
#include "futex.h"
#include "server/server.hpp"

namespace gemlet::server {

namespace {

bool is_pinned(const GroupSpec& spec) {
    return spec.priority == arbiter::Priority::kLatency;
}

// What a client says that it has on the device; it may write anything into its ledger and page, and something else by
// the next look.
Claim claim_of(const Attachment& a) {
    const uint64_t used = a.slot.used();
    Claim claim;
    uint64_t movable = 0;
    if (a.movable) {
        movable = a.movable->page->movable.load();
        claim.mapped = a.movable->page->mapped.load();
    }
    claim.fixed = arbiter::plus(used - std::min(used, movable), a.slot.untracked());
    return claim;
}

Claim believed_of(const Attachment& a) {
    Claim claim = a.claim;
    uint64_t unconfirmed = std::max(a.unconfirmed.bytes(), a.beyond);
    for (uint64_t* part : {&claim.fixed, &claim.mapped}) {
        const uint64_t less = std::min(*part, unconfirmed);
        *part -= less;
        unconfirmed -= less;
    }
    claim.fixed = arbiter::plus(claim.fixed, a.hidden.bytes());
    return claim;
}

}  // namespace

bool Server::limits_residency(const Device& device) {
    if (device.capacity) return true;
    return std::any_of(device.attachments.begin(), device.attachments.end(),
                       [](const auto& entry) { return entry.second->movable != nullptr; });
}

void Server::set_host_memory(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    host_memory_ = bytes;
}

// What other devices' clients may not need.
uint64_t Server::host_left(const Device& device) const {
    uint64_t others = 0;
    for (const auto& other : devices_)
        if (other.get() != &device && limits_residency(*other)) others += other->residency.host_promised();
    return host_memory_ - std::min(host_memory_, others);
}

void Server::set_capacity(const Uuid& uuid, std::optional<uint64_t> bytes, std::optional<Nanoseconds> max_wait) {
    std::lock_guard lock(mutex_);
    Nanoseconds now = clock();
    for (auto& device : devices_) {
        if (device->uuid != uuid) continue;
        device->capacity = bytes;
        settle_residency(*device, now);
        if (max_wait) device->residency.set_max_wait(*max_wait);
        device->residency.set_capacity(bytes.value_or(arbiter::kUnlimited), now);
        settle_residency(*device, now);
    }
    wake();
}

void Server::set_resident(Device& device, const Group& group, Nanoseconds now) {
    const GroupSettings& settings = group.settings;
    auto known = device.groups.find(settings.spec.name);
    if (known == device.groups.end()) return;
    device.residency.set_group(known->second, settings.resident.value_or(arbiter::kUnlimited),
                               share_of(spec_on(device, group)), now, is_pinned(settings.spec));
    settle_residency(device, now);
    apply(device, now);
}

void Server::join_residency(Device& device, Attachment& a, const Group& group, const Absent* before,
                            Nanoseconds now) {
    if (a.movable && before) {  // until it says so itself
        a.movable->page->movable = before->has.movable;
        a.movable->page->mapped = before->has.mapped;
        a.movable->page->away = before->has.mapped < before->has.movable;
    }
    GroupId id = group_on(device, groups_.at(group.settings.spec.name), now);
    device.residency.set_group(id, group.settings.resident.value_or(arbiter::kUnlimited),
                               share_of(spec_on(device, group)), now, is_pinned(group.settings.spec));
    if (before)
        device.residency.come_back(before->residency, a.id, id, now);
    else
        device.residency.add(a.id, id, now);
}

// Members charge memory within the limit before they ask for it, and say after they gave it back that they have less:
// until that arrives, others may have it as well.
bool Server::is_beyond_limit(const Device& device, const Attachment& a, uint64_t movable) {
    if (movable <= device.residency.movable(a.id)) return false;
    const uint64_t limit = a.slot.ledger().limit();
    uint64_t together = movable;
    for (const auto& [id, other] : device.attachments)
        if (id != a.id && &other->slot.ledger() == &a.slot.ledger())
            together = arbiter::plus(together, device.residency.movable(id));
    return together > arbiter::plus(limit, limit);
}

// Each is read once, for all that follows from it: one that is bounded and then read again is not bounded.
//
// Members that write their claims as the hook does are within the limit together. What is beyond it all the same,
// such as memory from before it fell, the driver confirms.
void Server::read_claims(Device& device) {
    for (const auto& [id, a] : device.attachments) a->claim = claim_of(*a);
    if (!device.confirms) return;
    std::unordered_map<const Ledger*, uint64_t> left;
    const auto rest_of = [&](const Slot& slot) -> uint64_t& {
        return left.try_emplace(&slot.ledger(), slot.ledger().limit()).first->second;
    };
    const auto take = [](uint64_t& rest, uint64_t bytes) {
        const uint64_t taken = std::min(rest, bytes);
        rest -= taken;
        return taken;
    };
    const auto claimed_by = [](const Attachment& a) { return arbiter::plus(a.claim.fixed, a.claim.mapped); };
    for (const auto& [id, a] : device.attachments) take(rest_of(a->slot), std::min(claimed_by(*a), a->confirmed));
    for (const auto& [id, absent] : absent_)
        if (absent.device.lock().get() == &device)
            take(rest_of(absent.slot), arbiter::plus(absent.has.fixed, absent.has.mapped));
    for (const auto& [id, a] : device.attachments) {
        const uint64_t claimed = claimed_by(*a), unconfirmed = claimed - std::min(claimed, a->confirmed);
        a->beyond = unconfirmed - take(rest_of(a->slot), unconfirmed);
    }
}

void Server::admit(Device& device, Attachment& a, const wire::Message& message, Nanoseconds now) {
    if (!a.movable) return;
    settle_residency(device, now);  // on what is there now: ledgers change without a message
    wire::ResidencyPage& page = *a.movable->page;
    Refusal refusal = Refusal::kNone;
    device.residency.set_host(host_left(device));
    // What it has from before is in its ledger, as all that it may ever have taken.
    if (message.flags & wire::kAdopt && a.may_adopt)
        device.residency.adopt(a.id, std::min(message.value, a.slot.used()), page.mapped.load(), now);
    else if (is_beyond_limit(device, a, message.value))
        refusal = Refusal::kCapacity;
    else
        refusal = device.residency.admit(a.id, message.value, now);
    settle_residency(device, now);  // the client finds its allowance with the answer
    if (message.header.epoch == 0) return;
    page.admission.store(uint32_t(refusal), std::memory_order_relaxed);
    page.answered.store(message.header.epoch, std::memory_order_release);
    futex_wake_some(page.answered);
    if (refusal != Refusal::kNone) emit("refused", *a.client, std::to_string(message.value), &device);
}

void Server::make_room(Device& device, Attachment& a, const wire::Message& message, Nanoseconds now) {
    if (!a.movable) return;
    if (message.flags & wire::kWouldStay) {  // who asks holds up its own memory meanwhile, so it is answered at once
        settle_residency(device, now);
        wire::ResidencyPage& page = *a.movable->page;
        const bool fits = device.residency.fits_if_it_stays(a.id, message.value);
        page.admission.store(uint32_t(fits ? Refusal::kNone : Refusal::kCapacity), std::memory_order_relaxed);
        page.answered.store(message.header.epoch, std::memory_order_release);
        futex_wake_some(page.answered);
        if (!fits) emit("refused", *a.client, std::to_string(message.value), &device);
        return;
    }
    a.movable->room_for = message.header.epoch;  // answered by settle_residency()
}

bool Server::withheld(Device& device, Attachment& a, Nanoseconds now) {
    device.residency.request(a.id, now);
    if (!a.movable || !a.movable->withheld) return false;
    a.movable->wants = true;
    return true;
}

// Reads what clients say, publishes what follows, and lets those run whose memory is there.
void Server::settle_residency(Device& device, Nanoseconds now) {
    if (!limits_residency(device)) return;
    read_claims(device);
    std::vector<arbiter::Residency::Report> reports;
    reports.reserve(device.attachments.size());
    for (auto& [id, a] : device.attachments) {
        // Before the rest of its page: what it has done by then is in there.
        const uint32_t seen = a->movable ? a->movable->page->seen.load(std::memory_order_acquire) : 0;
        const Claim claim = believed_of(*a);
        const bool complete = a->movable && a->movable->page->away.load() == 0;
        reports.push_back({id, a->movable != nullptr, claim.mapped, seen, complete, claim.fixed});
    }
    device.residency.report(reports, now);
    for (const arbiter::Order& order : device.residency.take_orders()) {
        auto found = device.attachments.find(order.client);
        if (found == device.attachments.end() || !found->second->movable) continue;
        wire::ResidencyPage& page = *found->second->movable->page;
        note(*found->second, "allowed", int64_t(order.allowed));
        page.allowed.store(order.allowed, std::memory_order_relaxed);
        page.order.store(order.number, std::memory_order_release);
        futex_wake_some(page.order);
    }
    for (auto& [id, a] : device.attachments) {
        if (!a->movable) continue;
        Movable& m = *a->movable;
        m.page->ceiling.store(device.residency.ceiling(id), std::memory_order_relaxed);
        m.page->host.store(device.residency.host(id), std::memory_order_relaxed);
        // A client whose memory is to leave runs on until it stops by itself: at the end of an iteration, if it
        // reports these.
        const bool here = device.residency.resident(id) || m.page->away.load() == 0;
        if (!here && !m.withheld) {
            m.withheld = true;
            note(*a, "away", int64_t(m.page->mapped.load()));
            m.wants = device.arbiter->cancel(id, now) || m.wants;
        } else if (here && m.withheld) {
            m.withheld = false;
            note(*a, "back", int64_t(m.page->mapped.load()));
            if (std::exchange(m.wants, false)) device.arbiter->request(id, now);
        }
        if (m.room_for == 0) continue;
        const bool never = !device.residency.fits_fixed(id, 0);
        if (!never && !device.residency.within(id)) continue;
        m.page->admission.store(uint32_t(never ? Refusal::kCapacity : Refusal::kNone), std::memory_order_relaxed);
        m.page->answered.store(std::exchange(m.room_for, 0), std::memory_order_release);
        futex_wake_some(m.page->answered);
    }
}

// `theirs` and `left_behind`: of one process, which has what it has once. `found`: what is news of those that left,
// for one decision on all processes.
void Server::check_claims(Device& device, std::vector<Attachment*> theirs, const std::vector<Absent*>& left_behind,
                          uint64_t bytes, Nanoseconds now, std::vector<Residency::Report>& found) {
    if (!limits_residency(device)) return;
    device.confirms = true;
    std::sort(theirs.begin(), theirs.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
    uint64_t left = bytes;
    const auto look_at_presumed = [&](ClientId client, Unconfirmed& presumed) {
        presumed.look(device.residency.only_presumed(client), left, false, options_.claim_grace, now);
        if (presumed.bytes() > 0) device.residency.refute(client, left, now);
    };
    for (Attachment* a : theirs) {
        const Claim claim = claim_of(*a);
        const uint64_t claimed = arbiter::plus(claim.fixed, claim.mapped);
        a->confirmed = std::min(left, claimed);
        a->unconfirmed.look(claimed, left, a->movable && a->movable->room_for != 0, options_.claim_grace, now);
        // And the other way round: memory that it does not say it has is there nevertheless.
        const uint64_t counted = arbiter::plus(claim.fixed, device.residency.committed(a->id));
        look_at_presumed(a->id, a->presumed);
        const bool last = a == theirs.back();
        a->hidden.look(last ? left : std::min(left, counted), counted, false, options_.claim_grace, now);
        left -= std::min(left, claimed);
    }
    for (Absent* each : left_behind) {
        look_at_presumed(each->residency, each->presumed);
        each->unconfirmed.look(each->has.fixed, left, false, options_.claim_grace, now);
        found.push_back({.client = each->residency,
                         .moves = false,
                         .mapped = 0,
                         .seen = 0,
                         .complete = false,
                         .fixed = believed(each->has, each->unconfirmed).fixed});
        left -= std::min(left, each->has.fixed);
    }
}

// What it said of its fixed memory when that was last read; of the rest, what it was admitted with, and allowed: that
// it may take until it learns that nobody allows anything any more.
OnDevice Server::on_device(const Device& device, const Attachment& a) {
    const uint64_t fixed = a.claim.fixed;
    return {arbiter::plus(fixed - std::min(fixed, a.beyond), a.hidden.bytes()), device.residency.movable(a.id),
            device.residency.committed(a.id)};
}

OnDevice Server::believed(OnDevice has, const Unconfirmed& unconfirmed) {
    has.fixed -= std::min(has.fixed, unconfirmed.bytes());
    return has;
}

std::unordered_map<ClientId, ResidencyUsage> Server::residencies(const Device& device, Nanoseconds now) {
    std::unordered_map<ClientId, ResidencyUsage> all;
    if (!limits_residency(device)) return all;
    for (ResidencyUsage& usage : device.residency.usage(now)) all.emplace(usage.client, std::move(usage));
    return all;
}

}  // namespace gemlet::server
