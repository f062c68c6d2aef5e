// Two holders whose fractions do not fit together: granted beside each other, and measured. Whether that is better
// than turns, pairs.cpp says.
//
// Tried are clients of MPS, whose kernels run at the same moment, and without MPS those that leave the device waiting
// for their launches: their contexts fill each other's gaps, and the hardware switches whenever one has nothing
// queued. A PyTorch program that is not one graph is often such a one.
#include "arbiter/arbiter_state.hpp"

namespace gemlet::arbiter {
namespace {

// In its first turns a program loads modules, and its kernels are not yet known.
constexpr unsigned kWarmUp = 2;
// A holder that nobody waited for says every few milliseconds what it has done, one with a partner ten times in this.
constexpr Nanoseconds kFreshNews = 1'000'000;
// A holder gives the token back when it has had nothing to do for so long (native/hook/token.cpp).
constexpr Nanoseconds kIdleFor = 100'000, kPatientFor = 2'000'000;
// So many looks at its queues tell whether a client keeps the device busy.
constexpr uint64_t kLooks = 16;
// Worth a trial without MPS: both leave gaps, and what they need of the device comes to little more than all of it.
// Two that keep it busy do 0.91 of the work of one, on the hardware's own time slicing.
constexpr double kGaps = 0.1, kGapsTogether = 0.7;
// A request that takes many pair_turns is not cut in pieces.
constexpr Nanoseconds kRequestTurns = 10;

bool may_pair(const Group& g) {
    return g.spec.workload != Workload::kAlone && g.spec.max >= 1.0;
}

bool hurried(const Group& g) {
    return g.spec.priority == Priority::kLatency;
}

bool may_overlap(const Client& a, const Client& b) {
    if (a.mps && b.mps) return true;
    return std::min(a.starved, b.starved) >= kGaps && a.starved + b.starved >= kGapsTogether;
}

void look(Client& client, bool alone) {
    const uint64_t all = client.looks.all - client.seen.all, dry = client.looks.dry - client.seen.dry;
    if (alone && all < kLooks) return;
    client.seen = client.looks;
    if (!alone) return;  // what others run keeps the device busy, too
    const double part = static_cast<double>(dry) / static_cast<double>(all);
    client.starved = client.turns <= kWarmUp ? part : (client.starved + part) / 2.0;
}

}  // namespace

Pairs::Member Arbiter::State::member(const Group& group, const Group& other) const {
    const double mine = policy->target(group), both = mine + policy->target(other);
    return {group.id, group.spec.workload, both > 0.0 ? mine / both : 0.5, hurried(group)};
}

// The only other holder, if both may run at a time.
Hold* Arbiter::State::partner_for(const Client& client) {
    Hold* only = nullptr;
    for (Hold& hold : holds.all()) {
        if (!hold.occupies() || hold.client == &client) continue;
        if (only) return nullptr;
        only = &hold;
    }
    const bool possible = only && only->group != client.group && may_overlap(*only->client, client) &&
                          !only->partner && (only->told == Hold::Told::kTerms || only->told == Hold::Told::kTook) &&
                          may_pair(*only->group) && may_pair(*client.group);
    return possible ? only : nullptr;
}

void Arbiter::State::run_beside(Hold& one, Hold& other, Nanoseconds length, Nanoseconds now) {
    one.partner = other.serial;
    other.partner = one.serial;
    for (Hold* hold : {&one, &other}) {
        const Nanoseconds longest = hurried(*hold->group) ? kRequestTurns * p.pair_turn : length;
        hold->latest = std::min(hold->latest, now + longest);
        hold->partners.push_back(hold->partner);
        hold->partner_group = (hold == &one ? other : one).group->id;
        hold->measuring = false;
        hold->together_since = now + kFreshNews;
    }
}

bool Arbiter::State::grant_beside(Members& group, Nanoseconds now) {
    const Hold* partner = partner_for(*next_of(group));
    if (!partner) return false;
    const Nanoseconds length =
        pairs.together_for(member(*partner->group, group), member(group, *partner->group), now);
    if (length <= 0) return false;
    const uint64_t serial = partner->serial;
    grant(group, kNever, now);
    run_beside(*holds.running(serial), holds.all().back(), length, now);
    return true;
}

// A parked token was taken while somebody runs: beside it, if that is good for both.
void Arbiter::State::join(Hold& hold, Nanoseconds now) {
    Hold* partner = partner_for(*hold.client);
    if (!partner || Holds::fit(*partner, hold)) return;
    const Nanoseconds length =
        pairs.together_for(member(*partner->group, *hold.group), member(*hold.group, *partner->group), now);
    if (length > 0) run_beside(*partner, hold, length, now);
}

// Known to be good for both, whichever of their clients come.
bool Arbiter::State::goes_with(const Members& a, const Members& b) const {
    if (!pairs.together(a.id, b.id) || !may_pair(a) || !may_pair(b)) return false;
    return std::all_of(a.members.begin(), a.members.end(), [&](const Client* x) {
        return std::all_of(b.members.begin(), b.members.end(), [&](const Client* y) { return may_overlap(*x, *y); });
    });
}

// A turn ends, so there is something to learn from it; but not from one that ended for want of work, unless it was a
// request.
void Arbiter::State::measure(const Hold& hold, StopReason reason, Nanoseconds now) {
    const bool request = reason == StopReason::kIdle && hurried(*hold.group);
    const bool busy = reason == StopReason::kDeadline || reason == StopReason::kRevoked;
    if (!busy && !request) {
        if (Hold* other = holds.running(hold.partner)) other->was_left = true;
        if (reason != StopReason::kIdle) return;
        look(*hold.client, hold.partners.empty());
        if (hold.patient && hold.partners.empty()) pairs.ran_short(hold.group->id, now);
        return;
    }
    Hold* other = holds.running(hold.partner);
    if (other && request) other->was_left = true;
    const Nanoseconds end = request ? now - (hold.patient ? kPatientFor : kIdleFor) : now;
    if (const Members* beside = find_group(hold.partner_group)) {
        const Pairs::Done done{hold.client->work - hold.work, std::max<Nanoseconds>(1, end - hold.from)};
        if (pairs.lost(member(*hold.group, *beside), member(*beside, *hold.group), done,
                       std::min(2 * hold.halved, done.time), hold.was_left, now))
            return;
    }
    if (other) {
        if (!hold.measuring || !other->measuring) return;
        // A request that has just ended is still there for a while; of a long one that matters little.
        const bool maybe_ended = hurried(*other->group) && !hurried(*hold.group);
        if (maybe_ended && now - other->together_since < Pairs::kRequests * p.pair_trial / 2) return;
        const auto done = [&](const Hold& h) {
            const Nanoseconds until = &h == &hold ? end : now;
            return Pairs::Done{h.client->work - h.together_work, std::max<Nanoseconds>(1, until - h.together_since)};
        };
        pairs.ran_together(member(*hold.group, *other->group), done(hold), member(*other->group, *hold.group),
                           done(*other), now);
        return;
    }
    ++hold.client->turns;
    look(*hold.client, hold.partners.empty());
    if (hold.client->turns <= kWarmUp || !hold.partners.empty()) return;
    if (end - hold.from < p.quantum_min)
        pairs.ran_short(hold.group->id, now);
    else
        pairs.ran_alone(hold.group->id, static_cast<double>(hold.client->work - hold.work) /
                                            static_cast<double>(std::max<Nanoseconds>(1, end - hold.from)));
}

// Its spec is new: it may not be one for a neighbour any more, or not for this one.
void Arbiter::State::keep_partner(const Group& group, const GroupSpec& before, Nanoseconds now) {
    const bool same = group.spec.priority == before.priority && group.spec.workload == before.workload;
    if (same && may_pair(group)) return;
    if (!same) pairs.forget(group.id);
    for (const Hold& hold : holds.all()) {
        Hold* other = hold.group == &group ? holds.running(hold.partner) : nullptr;
        if (other) other->latest = now;
    }
}

}  // namespace gemlet::arbiter
