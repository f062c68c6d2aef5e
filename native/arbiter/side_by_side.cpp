// Two holders under MPS whose fractions do not fit together: granted beside each other, and measured. Whether that is
// better than turns, pairs.cpp says.
#include "arbiter/arbiter_state.hpp"

namespace gemlet::arbiter {
namespace {

// In its first turns a program loads modules, and its kernels are not yet known.
constexpr unsigned kWarmUp = 2;
// A holder that nobody waited for says every few milliseconds what it has done, one with a partner ten times in this.
constexpr Nanoseconds kFreshNews = 1'000'000;

// Who is in a hurry is not slowed down by a neighbour.
bool may_pair(const Group& g) {
    return g.spec.priority != Priority::kLatency && g.spec.workload != Workload::kAlone && g.spec.max >= 1.0;
}

}  // namespace

Pairs::Member Arbiter::State::member(const Group& group, const Group& other) const {
    const double mine = policy->target(group), both = mine + policy->target(other);
    return {group.id, group.spec.workload, both > 0.0 ? mine / both : 0.5};
}

// The only holder, if both are clients of MPS.
Hold* Arbiter::State::partner_for(const Group& group) {
    Hold* only = nullptr;
    for (Hold& hold : holds.all()) {
        if (!hold.occupies()) continue;
        if (only) return nullptr;
        only = &hold;
    }
    const bool possible = only && only->client->mps && next_of(*groups[group.slot])->mps && !only->partner &&
                          (only->told == Hold::Told::kTerms || only->told == Hold::Told::kTook) &&
                          may_pair(*only->group) && may_pair(group);
    return possible ? only : nullptr;
}

bool Arbiter::State::grant_beside(Members& group, Nanoseconds now) {
    const Hold* partner = partner_for(group);
    if (!partner) return false;
    const Nanoseconds length =
        pairs.together_for(member(*partner->group, group), member(group, *partner->group), now);
    if (length <= 0) return false;
    const uint64_t serial = partner->serial;
    grant(group, now + length, now);
    Hold& one = *holds.running(serial);
    Hold& other = holds.all().back();
    one.latest = std::min(one.latest, now + length);
    one.partner = other.serial;
    other.partner = one.serial;
    for (Hold* hold : {&one, &other}) {
        hold->partners.push_back(hold->partner);
        hold->measuring = false;
        hold->together_since = now + kFreshNews;
    }
    return true;
}

// A turn ends, so there is something to learn from it; but not from one that ended for want of work.
void Arbiter::State::measure(const Hold& hold, StopReason reason, Nanoseconds now) {
    const bool busy = reason == StopReason::kDeadline || reason == StopReason::kRevoked;
    const auto rate = [&](const Hold& h, Nanoseconds since, Nanoseconds work) {
        return static_cast<double>(h.client->work - work) /
               static_cast<double>(std::max<Nanoseconds>(1, now - since));
    };
    if (!busy) return;
    if (const Hold* other = holds.running(hold.partner)) {
        if (!hold.measuring || !other->measuring || now - hold.together_since < p.pair_trial / 2) return;
        pairs.ran_together(member(*hold.group, *other->group), rate(hold, hold.together_since, hold.together_work),
                           member(*other->group, *hold.group),
                           rate(*other, other->together_since, other->together_work), now);
    } else if (++hold.client->turns > kWarmUp && hold.partners.empty() && hold.client->mps &&
               now - hold.from >= p.quantum_min) {
        pairs.ran_alone(hold.group->id, rate(hold, hold.from, hold.work));
    }
}

// Its spec is new: it may not be one for a neighbour any more.
void Arbiter::State::keep_partner(const Group& group, Nanoseconds now) {
    for (const Hold& hold : holds.all()) {
        Hold* other = hold.group == &group && !may_pair(group) ? holds.running(hold.partner) : nullptr;
        if (other) other->latest = now;
    }
}

}  // namespace gemlet::arbiter
