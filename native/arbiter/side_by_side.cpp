// Holders whose fractions do not fit together: granted beside each other, and measured. Whether that is better than
// turns, pairs.cpp says of two; of more it is watched.
//
// Tried are clients of MPS, whose kernels run at the same moment, and without MPS those that leave the device waiting
// for their launches: their contexts fill each other's gaps, and the hardware switches whenever one has nothing
// queued. A PyTorch program that is not one graph is often such a one.
#include <utility>

#include "arbiter/arbiter_state.hpp"
#include "wire.h"

namespace gemlet::arbiter {
namespace {

// In its first turns a program loads modules, and its kernels are not yet known.
constexpr unsigned kWarmUp = 2;
// So many looks at its queues tell whether a client keeps the device busy.
constexpr uint64_t kLooks = 16;
// Worth a trial without MPS: both leave gaps, and what they need of the device comes to little more than all of it.
// Two that keep it busy do 0.91 of the work of one, on the hardware's own time slicing.
constexpr double kGaps = 0.1, kRoom = 1.3;
// ... and of more than two, if one of them is in a hurry.
constexpr double kRoomForHurry = 1.0;
// A request that takes many pair_turns is not cut in pieces by one neighbour. Its end tells whether it suffered from
// more of them.
constexpr Nanoseconds kRequestTurns = 10;
// Kernels of a program that run at the same moment, at most: what it says beyond that is not so.
constexpr Nanoseconds kMostAtATime = 128;

bool may_pair(const Group& g) {
    return g.spec.workload != Workload::kAlone && g.spec.max >= 1.0;
}

bool hurried(const Group& g) {
    return g.spec.priority == Priority::kLatency;
}

bool may_overlap(const Client& a, const Client& b) {
    if (a.mps && b.mps) return true;
    return std::min(a.starved, b.starved) >= kGaps && 2.0 - a.starved - b.starved <= kRoom;
}

Nanoseconds plausible(Nanoseconds work, Nanoseconds time) {
    return work / kMostAtATime < time ? work : kMostAtATime * time;
}

void look(Client& client, bool alone) {
    const uint64_t all = client.looks.all - client.seen.all, dry = client.looks.dry - client.seen.dry;
    if (alone && all < kLooks) return;
    client.seen = client.looks;
    if (!alone) return;  // what others run keeps the device busy, too
    const double part = static_cast<double>(std::min(dry, all)) / static_cast<double>(all);
    client.starved = client.turns < kWarmUp ? part : (client.starved + part) / 2.0;
}

}  // namespace

Pairs::Member Arbiter::State::member(const Group& group, const Group& other) const {
    const double mine = holds.weight(group), both = mine + holds.weight(other);
    return {group.id, group.spec.workload, mine / both, hurried(group)};
}

// Those who hold the token, if each of them may run at the same time as this one; empty if not.
std::vector<Hold*> Arbiter::State::companions(const Client& client) {
    std::vector<Hold*> others;
    double busy = 1.0 - client.starved;
    bool hurry = hurried(*client.group);
    for (Hold& hold : holds.all()) {
        if (!hold.occupies() || hold.client == &client) continue;
        const bool told = hold.told == Hold::Told::kTerms || hold.told == Hold::Told::kTook;
        const bool joined = others.empty() || (hold.company && hold.company == others.front()->company);
        if (hold.group == client.group || !told || !joined || !may_overlap(*hold.client, client) ||
            !may_pair(*hold.group) || !may_pair(*client.group))
            return {};
        busy += 1.0 - hold.client->starved;
        hurry |= hurried(*hold.group);
        others.push_back(&hold);
    }
    // Who is to be measured alone is alone.
    for (const Hold* hold : others)
        if (pairs.curious(hold->group->id, clock)) return {};
    if (pairs.curious(client.group->id, clock)) return {};
    // What two do to each other is tried. More are not, but watched: each must be known to go with each, and the
    // device must have room for what they need of it.
    if (others.size() == 1) return others.front()->company ? std::vector<Hold*>{} : others;
    std::vector<GroupId> all{client.group->id};
    for (const Hold* hold : others) all.push_back(hold->group->id);
    const bool known = std::all_of(all.begin(), all.end(), [&](GroupId a) {
        return std::all_of(all.begin(), all.end(), [&](GroupId b) { return a == b || pairs.together(a, b); });
    });
    const bool may = std::all_of(all.begin(), all.end(), [&](GroupId g) { return pairs.may_have_company(g, clock); });
    if (!known || !may || busy > (hurry ? kRoomForHurry : kRoom)) return {};
    return others;
}

Nanoseconds Arbiter::State::together_for(const std::vector<Hold*>& others, const Client& client, Nanoseconds now) {
    if (others.empty()) return 0;
    if (others.size() > 1) return p.pair_turn;
    const Group& one = *others.front()->group;
    return pairs.together_for(member(one, *client.group), member(*client.group, one), now);
}

void Arbiter::State::run_beside(Hold& hold, const std::vector<Hold*>& others, Nanoseconds length, Nanoseconds now) {
    const auto changed = [&](Hold& one, const Hold& partner) {
        const bool whole = hurried(*one.group) && others.size() == 1;
        const Nanoseconds longest = whole ? kRequestTurns * p.pair_turn : length;
        one.latest = std::min(one.latest, now + longest);
        one.measuring = false;
        one.together_since = now + kFreshNews;
        one.partner_group = partner.group->id;
        one.crowd |= others.size() > 1;
    };
    for (Hold* other : others) {
        holds.join(hold, *other);
        changed(*other, hold);
    }
    changed(hold, *others.front());
}

// Turns keep their order, so two that are never neighbours in it would never be tried, and company that both belong
// to never grow: who goes with the next one and is unknown to the holder is tried in its place. Null if there is
// none.
const Group* Arbiter::State::untried(const Group& next) {
    const Hold* only = nullptr;
    for (const Hold& hold : holds.all()) {
        if (!hold.occupies()) continue;
        if (only) return nullptr;
        only = &hold;
    }
    if (!only || !pairs.together(only->group->id, next.id)) return nullptr;
    for (const Group* g : waiting) {
        if (g == &next || g == only->group || !pairs.together(g->id, next.id)) continue;
        const Client* client = next_of(*groups[g->slot]);
        if (pairs.untried(only->group->id, g->id) && may_overlap(*only->client, *client)) return g;
    }
    return nullptr;
}

bool Arbiter::State::grant_beside(Members& group, Nanoseconds now) {
    const Client& client = *next_of(group);
    const Nanoseconds length = together_for(companions(client), client, now);
    if (length <= 0) return false;
    grant(group, kNever, now);
    Hold& hold = holds.all().back();  // and those before it have moved
    std::vector<Hold*> others;
    for (Hold& other : holds.all())
        if (other.occupies() && &other != &hold) others.push_back(&other);
    run_beside(hold, others, length, now);
    return true;
}

// A parked token was taken while somebody runs: beside it, if that is good for both.
void Arbiter::State::join(Hold& hold, Nanoseconds now) {
    const std::vector<Hold*> others = companions(*hold.client);
    if (others.empty() || holds.occupied() <= kFull) return;
    const Nanoseconds length = together_for(others, *hold.client, now);
    if (length > 0) run_beside(hold, others, length, now);
}

// A turn as a whole, whoever was beside it and left before anything was measured. Nobody may have less than in turns.
bool Arbiter::State::fell_short(const Hold& hold, Nanoseconds end, Nanoseconds now) {
    const Nanoseconds time = std::max<Nanoseconds>(1, end - hold.from), beside = std::min(hold.accompanied, time);
    const double paid =
        1.0 - static_cast<double>(hold.spared) / static_cast<double>(std::max<Nanoseconds>(1, hold.accompanied));
    const Pairs::Turn turn{.work = plausible(hold.client->work - hold.work, time),
                           .apart = time - beside,
                           .beside = beside,
                           .due = static_cast<Nanoseconds>(paid * static_cast<double>(beside))};
    if (!hold.crowd) {
        const Members* other = find_group(hold.partner_group);
        return other &&
               pairs.lost(member(*hold.group, *other), member(*other, *hold.group), turn, hold.was_left, now);
    }
    if (!pairs.lost_in_company(hold.group->id, hurried(*hold.group), turn, now)) return false;
    for (Hold& one : holds.all())
        if (hold.company && one.company == hold.company) one.latest = now;
    return true;
}

// Known to be good for both, whichever of their clients come.
bool Arbiter::State::goes_with(const Members& a, const Members& b) const {
    if (!pairs.together(a.id, b.id) || !may_pair(a) || !may_pair(b)) return false;
    return std::all_of(a.members.begin(), a.members.end(), [&](const Client* x) {
        return std::all_of(b.members.begin(), b.members.end(), [&](const Client* y) { return may_overlap(*x, *y); });
    });
}

// Whether a request of `group` would run beside this one, and those it runs with now.
bool Arbiter::State::joins(const Members& group, const Hold& hold) {
    if (!goes_with(group, static_cast<const Members&>(*hold.group))) return false;
    return !hold.company || std::any_of(group.members.begin(), group.members.end(), [&](const Client* client) {
        const Hold* running = holds.running(client);
        return running ? running->company == hold.company : !companions(*client).empty();
    });
}

// A turn ends, so there is something to learn from it; but not from one that ended for want of work, unless it was a
// request.
void Arbiter::State::measure(const Hold& hold, StopReason reason, Nanoseconds now) {
    const bool request = reason == StopReason::kIdle && hurried(*hold.group);
    const bool busy = reason == StopReason::kDeadline || reason == StopReason::kRevoked;
    for (Hold& other : holds.all())
        if (!busy && hold.company && other.company == hold.company && &other != &hold) other.was_left = true;
    if (!busy && reason != StopReason::kIdle) return;
    look(*hold.client, hold.companies.empty());
    const Nanoseconds end = busy ? now : now - Nanoseconds(hold.patient ? wire::kIdlePatient : wire::kIdleContended);
    if (!hold.companies.empty() && fell_short(hold, end, now)) return;
    if (!busy && !request) {
        if (hold.patient && hold.companies.empty()) pairs.ran_short(hold.group->id, now);
        return;
    }
    if (holds.company(hold) > 2) return;
    const auto& all = holds.all();
    const auto other = std::find_if(all.begin(), all.end(), [&](const Hold& h) {
        return hold.company && h.company == hold.company && h.runs() && h.serial != hold.serial;
    });
    if (other != all.end()) {
        if (!hold.measuring || !other->measuring) return;
        // A request that has just ended is still there for a while; of a long one that matters little.
        const bool maybe_ended = hurried(*other->group) && !hurried(*hold.group);
        if (maybe_ended && now - other->together_since < Pairs::kRequests * p.pair_trial / 2) return;
        const auto done = [&](const Hold& h) {
            const Nanoseconds until = &h == &hold ? end : now;
            const Nanoseconds time = std::max<Nanoseconds>(1, until - h.together_since);
            return Pairs::Done{plausible(h.client->work - h.together_work, time), time};
        };
        pairs.ran_together(member(*hold.group, *other->group), done(hold), member(*other->group, *hold.group),
                           done(*other), now);
        return;
    }
    if (++hold.client->turns <= kWarmUp || !hold.companies.empty()) return;
    if (end - hold.from < p.quantum_min)
        pairs.ran_short(hold.group->id, now);
    else
        pairs.ran_alone(hold.group->id,
                        static_cast<double>(hold.client->work - hold.work) /
                            static_cast<double>(std::max<Nanoseconds>(1, end - hold.from)),
                        now);
}

// Its spec is new: it may not be one for a neighbour any more, or not for this one.
void Arbiter::State::keep_partner(const Group& group, const GroupSpec& before, Nanoseconds now) {
    const bool same = group.spec.priority == before.priority && group.spec.workload == before.workload;
    if (same && may_pair(group)) return;
    if (!same) pairs.forget(group.id);
    for (const Hold& hold : holds.all()) {
        if (hold.group != &group || !hold.company) continue;
        for (Hold& other : holds.all())
            if (&other != &hold && other.company == hold.company) other.latest = now;
    }
}

}  // namespace gemlet::arbiter
