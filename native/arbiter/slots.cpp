// What one device keeps to of the plan for all of them (gangs.hpp): who may run in whose slot, and until when.
#include <algorithm>

#include "arbiter/arbiter_state.hpp"
#include "arbiter/counters.hpp"
#include "arbiter/rivals.hpp"

namespace gemlet::arbiter {
namespace {

// A client that ran or waited this recently will do so again.
constexpr Nanoseconds kLately = 200'000'000;
// Before a slot no turn begins that would be too short to be worth a hand-over.
constexpr Nanoseconds kShort = 500'000;

bool contend(const Client& a, const Client& b) {
    return !compatible(a.why(), b.why()) && a.sm + b.sm > kFull;
}

}  // namespace

bool Arbiter::State::contends_with(const Client& client, const Members& group) const {
    return std::any_of(group.members.begin(), group.members.end(),
                       [&](const Client* member) { return contend(client, *member); });
}

bool Arbiter::State::drains(const Client& client) const {
    return std::any_of(leases.all().begin(), leases.all().end(),
                       [&](const Lease& lease) { return lease.client == &client && !lease.runs(); });
}

// Whether the slot under way has ended for it: what it would submit next ends too late.
bool Arbiter::State::ended(const Client& client) const {
    return reservation.slot > 0 && client.left_slot == reservation.slot;
}

// Whether it may begin to run, as far as slots are concerned.
bool Arbiter::State::admits(const Client& client) const {
    const Group& group = *client.group;
    if (group.planned > 0.0) {
        if (group.id != reservation.gang) return false;
        if (reservation.over) return reservation.go_on > 0 && !drains(client);
        return !ended(client);
    }
    const Members* gang = slot_owner();
    if (!gang && clock >= reservation.until - kShort && awaits_slot(client)) return false;
    return !gang || !contends_with(client, *gang) || policy->may_interrupt(group, *gang, clock);
}

bool Arbiter::State::admits(const Group& group) const {
    if (group.planned > 0.0) return group.id == reservation.gang && !reservation.over;
    const Members* gang = slot_owner();
    return !gang || !group.exclusive || policy->may_interrupt(group, *gang, clock);
}

const Members* Arbiter::State::slot_owner() const {
    const Members* group = find_group(reservation.gang);
    return group && group->planned > 0.0 ? group : nullptr;
}

// Whether its turn ends when the next slot of a gang begins.
bool Arbiter::State::awaits_slot(const Client& client) const {
    return std::any_of(groups.begin(), groups.end(), [&](const auto& other) {
        return other && other->planned > 0.0 && contends_with(client, *other) &&
               !policy->may_interrupt(*client.group, *other, clock);
    });
}

// Whether others wait for what it leaves of its slot. It need not end for them: best effort has what pauses leave.
bool Arbiter::State::waited_for(const Client& client) const {
    return std::any_of(groups.begin(), groups.end(), [&](const auto& other) {
        return other && other.get() != client.group && other->waiting > 0 && contends_with(client, *other);
    });
}

// When slots end its turn.
Nanoseconds Arbiter::State::slot_end(const Lease& lease, Nanoseconds now) const {
    const Group& group = *lease.group;
    if (lease.catches_up) return lease.granted + p.quantum_min;
    if (group.planned > 0.0) {
        if (group.id != reservation.gang || (reservation.over && reservation.go_on == 0)) return now;
        return std::max(now, reservation.until);
    }
    if (const Members* gang = slot_owner())
        return contends_with(*lease.client, *gang) && !policy->may_interrupt(group, *gang, now) ? now : kNever;
    return awaits_slot(*lease.client) ? reservation.until : kNever;
}

// What its peers wait for with the device in slices costs those whose slot it is more than what it submits.
void Arbiter::State::admit_late_ranks(Nanoseconds now) {
    for (const auto& group : groups) {
        if (!group || group->catch_up == 0 || group->id == reservation.gang) continue;
        for (Client* client : group->members) {
            if (!client->waiting || drains(*client)) continue;
            client->waiting = false;
            Lease& lease = lease_for(*client, now);
            lease.catches_up = true;
            lease.submissions = group->catch_up;
        }
    }
}

uint64_t Arbiter::changes() const {
    return state_->changes;
}

std::vector<Arbiter::Name> Arbiter::names() const {
    std::vector<Name> names;
    if (!state_->policy->keeps_slots()) return names;
    for (const auto& group : state_->groups)
        if (group && group->clients > 0) names.push_back({group->id, group->spec.name, group->spec.gang});
    return names;
}

const GroupSpec* Arbiter::spec(GroupId id) const {
    const Members* group = state_->find_group(id);
    return group ? &group->spec : nullptr;
}

namespace {

// Of one client.
Ranks ranks_of(const Client& client, Nanoseconds now) {
    const Observation& seen = client.seen;
    const bool runs = client.active && !client.waiting, will_run = now < client.group->lingers_until;
    return {.any = true,
            .behind = client.waiting || (runs && client.standing.behind),
            .saturate = client.waiting || ((runs || will_run) && seen.always_waits()),
            .duty = seen.duty()};
}

}  // namespace

// Once for all groups: to look for each through all clients and leases would take too long with hundreds.
void Arbiter::attend(Nanoseconds now) {
    State& s = *state_;
    for (const auto& group : s.groups) {
        if (!group) continue;
        group->attendance = {
            .group = group->id, .due = s.policy->due(*group), .wants = group->waiting > 0, .moved = group->moved};
    }
    for (const auto& [id, client] : s.clients) {
        client->active = client->waiting;
        client->at_rest = true;
    }
    for (const Lease& lease : s.leases.all()) {
        if (lease.occupies()) lease.client->active = true;
        if (!lease.runs() || s.waits_for_peer(lease, now)) lease.client->at_rest = false;
        s.attend(lease, now);
    }
    Rivals lately, free_lately, free, owed;  // those that ran or waited of late, in no gang with slots, do so now
    for (const auto& [id, client] : s.clients) {
        client->lately = client->active || (client->active_at > 0 && now - client->active_at <= kLately);
        if (!client->lately) continue;
        lately.add(*client);
        if (client->group->planned > 0.0) continue;
        free_lately.add(*client);
        if (client->active) free.add(*client);
        if (client->waiting && s.policy->owed(*client->group, now)) owed.add(*client);
    }
    for (const auto& [id, client] : s.clients) {
        Attendance& a = client->group->attendance;
        a.work = sum_of(a.work, client->seen.work());
        a.launches += client->seen.launches();
        // A process of a job may have opened a device on which another one is the rank.
        a.clients += client->lately || !client->at_rest;
        a.at_rest += client->lately && client->at_rest;
        a.ended |= s.reservation.gang == a.group && !s.reservation.over && s.ended(*client);
        a.met |= free.has_one_against(*client, client->why());
        a.owes |= owed.has_one_against(*client, client->why());
        a.met_lately |= free_lately.has_one_against(*client, client->why());
        if (!client->lately) continue;
        a.exclusive |= client->standing.exclusive();
        a.contends |= lately.has_one_against(*client, client->standing.why);
        a.ranks.add(ranks_of(*client, now));
    }
    for (const auto& group : s.groups)
        if (group && !group->attendance.ranks.any)
            group->attendance.ranks = {.any = true, .behind = false, .saturate = false, .duty = 1.0};
}

// It was to submit what its peers wait for, and has not stopped in time: now it waits for one of them itself.
bool Arbiter::State::waits_for_peer(const Lease& lease, Nanoseconds now) const {
    return lease.catches_up && lease.runs() && now - p.slack >= lease.deadline;
}

void Arbiter::State::attend(const Lease& lease, Nanoseconds now) {
    Attendance& a = static_cast<Members*>(lease.group)->attendance;
    a.busy = true;
    a.wants |= lease.runs();
    a.catches_up |= lease.catches_up && lease.runs();
    a.waits_for_peer |= waits_for_peer(lease, now);
    if (lease.runs() && lease.deadline == kNever) return;
    // A kernel that has waited for its peers before is thought to be long, so no estimate is believed for ever.
    const Nanoseconds end = lease.runs() ? lease.deadline : std::min(lease.end, lease.stopped + p.quantum_min);
    const Nanoseconds late = end + p.slack;
    if (now >= late)
        a.stuck = true;
    else
        a.look_at = std::min(a.look_at, late);
}

Attendance Arbiter::attendance(GroupId id) const {
    const Members* group = state_->find_group(id);
    return group ? group->attendance : Attendance{.group = id};
}

void Arbiter::hear(GroupId id, const Ranks& peers) {
    if (Members* group = state_->find_group(id)) group->peers = peers;
}

void Arbiter::reserve(const std::vector<Planned>& planned, const Reservation& reservation, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    std::vector<Members*> before;  // those that had slots
    for (const auto& group : s.groups) {
        if (!group) continue;
        if (group->planned > 0.0) before.push_back(group.get());
        group->planned = 0.0;
        group->catch_up = 0;
    }
    size_t with_slots = 0;
    for (const Planned& each : planned) {
        Members* group = s.find_group(each.group);
        if (!group) continue;
        group->planned = each.share;
        group->catch_up = each.catch_up;
        ++with_slots;
    }
    s.demand_changed |= with_slots != before.size() ||
                        std::any_of(before.begin(), before.end(), [](const Members* g) { return g->planned <= 0.0; });
    s.reservation = reservation;
    for (Lease& lease : s.leases.all()) {
        if (!lease.runs()) continue;
        lease.why = lease.client->why();
        lease.slotted = lease.group->planned > 0.0;
    }
    const auto parked = s.parked;
    for (Client* client : parked)
        if (client->group->planned > 0.0) s.take_parked(*client, s.leases.next_serial(), now);
    s.settle(now);
}

}  // namespace gemlet::arbiter
