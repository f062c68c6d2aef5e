// Chooses which client runs next, beside which others, and on what terms.
#include <algorithm>
#include <cmath>

#include "arbiter/arbiter_state.hpp"
#include "arbiter/counters.hpp"

namespace gemlet::arbiter {
namespace {

// A holder is told of a new deadline only if it moved by more than this; the same moment computed twice differs by
// less.
constexpr Nanoseconds kNoticeable = 50'000;

}  // namespace

void Arbiter::State::find_waiting() {
    waiting.clear();
    for (const Group* g : everyone) {
        if (g->waiting == 0) continue;
        const Client* next = next_of(*groups[g->slot]);
        // Of a group that runs already, another client may co-run.
        if (next && (!g->running || may_run(*next))) waiting.push_back(g);
    }
}

// Null if slots keep all that wait from running.
Client* Arbiter::State::next_of(Members& group) const {
    Client* best = nullptr;
    const bool by_arrival = policy->by_arrival();
    for (Client* client : group.members) {
        if (!client->waiting || !admits(*client)) continue;
        const bool less = best && client->used < best->used, same = best && client->used == best->used;
        if (!best || (by_arrival ? client->since < best->since : less || (same && client->since < best->since))) {
            best = client;
        }
    }
    return best;
}

void Arbiter::State::raise_level(Members& group) {
    Nanoseconds least = kNever;
    for (const Client* client : group.members)
        if (client->waiting) least = std::min(least, client->used);
    for (const Lease& lease : leases.all())
        if (lease.runs() && lease.group == &group) least = std::min(least, lease.client->used);
    if (least != kNever) group.level = std::max(group.level, least);
}

void Arbiter::State::grant_while_possible(Nanoseconds now) {
    for (;;) {
        find_waiting();
        if (waiting.empty()) return;
        const Group* next = policy->pick(waiting, now);
        if (!next) return;
        Nanoseconds latest = kNever;
        const Client& first = *next_of(*groups[next->slot]);
        if (!may_run(first)) {
            // The next one cannot run yet. Another may run meanwhile if it co-runs with the next one, too, or if it
            // is gone when the present holders are. What it uses of the device must be its own: a part that nobody
            // has, or a share that it has not had yet.
            update_terms(now);
            // Who is let in meanwhile must not be one whose turn these would end at once.
            hurrying.clear();
            for (const Group* g : waiting)
                if (policy->hurries(*g, waiting, now)) hurrying.push_back(g);
            const auto pick_meanwhile = [&](bool stays) {
                fitting.clear();
                for (const Group* g : waiting) {
                    const Client& client = *next_of(*groups[g->slot]);
                    if (!may_run(client) || (leases.occupied() + client.sm > kFull && !policy->behind(*g))) continue;
                    const auto interrupts = [&](const Group* other) {
                        return policy->may_interrupt(*other, *g, now);
                    };
                    if (std::any_of(hurrying.begin(), hurrying.end(), interrupts)) continue;
                    if (!stays || compatible(client.why(), first.why())) fitting.push_back(g);
                }
                return fitting.empty() ? nullptr : policy->pick(fitting, now);
            };
            next = pick_meanwhile(true);
            if (!next) {
                latest = last_deadline(now);
                next = latest - now < p.quantum_min ? nullptr : pick_meanwhile(false);
            }
            if (!next) return;
        }
        grant(*groups[next->slot], latest, now);
    }
}

Nanoseconds Arbiter::State::last_deadline(Nanoseconds now) const {
    Nanoseconds last = now;
    for (const Lease& lease : leases.all()) {
        if (lease.in_the_way()) last = std::max(last, lease.deadline);
    }
    return last;
}

bool Arbiter::State::may_run(const Client& client) const {
    return in_its_way(client, false) + client.sm <= kFull;
}

// Multiprocessors of those that may run at the same time only if all of them fit; more than all if one alone does
// not leave room.
double Arbiter::State::in_its_way(const Client& client, bool parked_too) const {
    double sm = 0.0;
    const auto consider = [&](const Client& other, Why why) {
        const bool same_gang = other.group == client.group && client.group->planned > 0.0;
        if (&other != &client && !same_gang && !compatible(client.why(), why)) sm += other.sm;
    };
    for (const Lease& lease : leases.all()) {
        if (lease.in_the_way()) consider(*lease.client, lease.why);
    }
    // Clients that have theirs by right have no reservation: they will overlap with a holder, which stops.
    for (const Client* other : parked) {
        if (parked_too && !other->by_right) consider(*other, other->why());
    }
    return sm;
}

void Arbiter::State::grant(Members& group, Nanoseconds latest, Nanoseconds now) {
    Client& client = *next_of(group);
    client.waiting = false;
    if (group.planned <= 0.0) client.waited += now - std::max(client.since, contention.judged_at());
    unpark(client);
    Lease& lease = lease_for(client, now);
    lease.latest = latest;
    make_room(lease, now);
}

Lease& Arbiter::State::lease_for(Client& client, Nanoseconds now) {
    Lease& lease = leases.start(&client, client.group, now);
    if (lease.slotted && reservation.over) lease.submissions = reservation.submissions;
    client.unparked_for = 0;
    recount(*client.group);
    policy->granted(lease.turn(), now);
    return lease;
}

// What the terms of all leases depend on, found once.
void Arbiter::State::look_round(Nanoseconds now) {
    around.trial = trial(now);
    around.running = around.loud = 0;
    around.asking.clear();
    around.urgent.clear();
    around.apart.clear();
    around.in_turns.clear();
    for (const Lease& lease : leases.all()) {
        around.running += lease.in_the_way();
        if (lease.occupies() && lease.why != Why::kShares) around.in_turns.push_back(&lease);
    }
    for (const Group* g : everyone) {
        if ((g->waiting > 0 || (!g->running && now < g->lingers_until)) && admits(*g)) around.asking.push_back(g);
        if (g->clients == 0) continue;
        const bool loud = !is_quiet(*g);
        around.loud += loud;
        if (loud && static_cast<const Members*>(g)->apart) around.apart.push_back(g);
        if (g->exclusive && g->spec.priority == Priority::kLatency && g->spec.max > 0.0 && expects_requests(*g))
            around.urgent.push_back(g);
    }
}

void Arbiter::State::update_terms(Nanoseconds now) {
    look_round(now);
    for (Lease& lease : leases.all()) {
        if (lease.occupies()) update_terms(lease, now);
    }
}

void Arbiter::State::update_terms(Lease& lease, Nanoseconds now) {
    const bool known = lease.sent == Lease::Sent::kTerms || lease.sent == Lease::Sent::kRevoked;
    if (known && now >= lease.deadline) return;  // it is stopping already
    if (lease.slotted && lease.group->id == reservation.gang && !reservation.over) lease.slot = reservation.slot;
    contenders.clear();
    for (const Group* g : around.asking) {
        if (lease.slotted && !policy->may_interrupt(*g, *lease.group, now)) continue;
        if (g == lease.group ? g->waiting > 0 : !g->running) contenders.push_back(g);
    }
    const auto conflict = [&](const Lease& other) {
        return other.group != lease.group && !Leases::co_run(other, lease);
    };
    const auto add = [&](const Lease& other) {  // took a parked token meanwhile, and must not be interrupted
        const bool goes_first = other.serial < lease.serial && policy->may_interrupt(*lease.group, *other.group, now);
        if (!goes_first) contenders.push_back(other.group);
    };
    if (lease.why == Why::kShares) {  // those that share co-run
        for (const Lease* other : around.in_turns)
            if (conflict(*other)) add(*other);
    } else {
        for (const Lease& other : leases.all())
            if (other.occupies() && conflict(other)) add(other);
    }
    Turn turn = lease.turn();
    turn.part = lease.rate;
    // A turn that is cut short for another reason is not one that the policy gave, and would make up for.
    const bool is_over = lease.latest <= now;
    Terms terms{.deadline = is_over ? now : kNever, .contended = true};
    if (!is_over && !lease.catches_up) terms = policy->terms(turn, contenders, now);
    const Nanoseconds slot = slot_end(lease, now);
    terms.deadline = std::min({terms.deadline, lease.latest, slot});
    terms.contended |= slot != kNever || (lease.slotted && waited_for(*lease.client));
    const Conditions conditions = conditions_for(lease, terms.deadline, terms.contended);
    const bool moved = terms.deadline == kNever || lease.deadline == kNever
                           ? terms.deadline != lease.deadline
                           : std::abs(terms.deadline - lease.deadline) > kNoticeable || terms.deadline <= now;
    if (known && !moved && conditions == lease.conditions) return;
    Action::Kind kind = Action::Kind::kUpdate;
    if (lease.sent == Lease::Sent::kNothing)
        kind = Action::Kind::kGrant;
    else if (terms.deadline <= now)
        kind = Action::Kind::kRevoke;
    lease.deadline = kind == Action::Kind::kRevoke ? now : terms.deadline;
    lease.conditions = conditions;
    lease.sent = kind == Action::Kind::kRevoke ? Lease::Sent::kRevoked : Lease::Sent::kTerms;
    actions.push_back({kind, lease.client->id, lease.deadline, conditions.window, conditions.idle,
                       conditions.idle_most, conditions.poll, conditions.shared, conditions.submissions});
}

Conditions Arbiter::State::conditions_for(const Lease& lease, Nanoseconds deadline, bool contended) {
    Conditions c;
    c.window = window_for(lease, deadline, contended);
    c.shared = around.running > 1;
    c.submissions = lease.submissions;
    // A group at its maximum is charged only for what it uses, too.
    const bool counted = contended || deadline != kNever;
    // One that is behind its promise does not lose its turn by a short pause.
    c.idle = !counted ? p.idle_alone : lease.why == Why::kBehind ? p.idle_most : p.idle_contended;
    c.idle_most = counted ? p.idle_most : p.idle_alone;
    // Its peers on other devices may wait for it.
    const bool slot = counted && lease.slotted;
    if (slot) c.idle = c.idle_most;
    const bool requests = lease.group->spec.priority == Priority::kLatency || around.trial;
    // Each look costs a program that is bound by its host some 40 us.
    const bool seldom = !c.shared || (lease.client->standing.at_ease && !around.trial);
    if (slot)
        c.poll = c.idle / 8;  // enough to see a pause that is so long
    else
        c.poll = counted ? p.poll_contended : seldom ? p.poll_alone : requests ? p.poll_requests : p.poll_shared;
    return c;
}

// What all others that need its multiprocessors have done so far, by their own counters.
Nanoseconds Arbiter::State::work_beside(const Client& client) const {
    Nanoseconds work = work_of_gone;
    for (const auto& [id, other] : clients)
        if (other.get() != &client && other->sm + client.sm > kFull) work = sum_of(work, other->seen.work());
    return work;
}

// The next holder's first work may arrive while this one's tail still runs, just as the hardware's slice ends: then
// the hardware runs the next one for a whole slice before the tail goes on. A drain late by about one such turn, or
// several, was not the tail's time but that of others.
Nanoseconds Arbiter::State::believed(const Lease& lease, Nanoseconds drained) const {
    const Nanoseconds late = drained - lease.end;
    const Nanoseconds turns = (late + p.hardware_turn / 2) / p.hardware_turn * p.hardware_turn;  // the nearest number
    if (late <= 0 || lease.is_lingering()) return drained;
    const bool of_others = std::abs(late - turns) < p.hardware_turn / 3 && leases.followed(lease);
    return of_others ? std::max(lease.end, drained - turns) : drained;
}

Nanoseconds Arbiter::State::window_for(const Lease& lease, Nanoseconds deadline, bool contended) {
    const Group& group = *lease.group;
    const bool alone = deadline == kNever && !contended;
    // Each submission is looked at where they are counted, and none waits for the one before.
    if (lease.submissions > 0) return 1;
    if (lease.slotted && reservation.over) return p.window_latency;
    for (const Group* g : around.urgent) {
        if (g != &group && g->sm + lease.sm > kFull) return p.window_latency;
    }
    // Ranks that are tried once more: what they have in the queue when that fails drains in slices, for seconds if it
    // is all that fits.
    if (lease.client->standing.failed && around.running > 1) return p.window_shared;
    const bool quiet = alone && group.clients < 2 && around.loud == (is_quiet(group) ? 0u : 1u);
    if (quiet) return p.window_alone;
    // Others that share run beside what is left in its queue; those that do not wait for it after each pause.
    const bool shares = alone && lease.why == Why::kShares;
    const auto waits = [&](const Group* g) { return g != &group && g->sm + lease.sm > kFull; };
    const bool apart = shares && std::any_of(around.apart.begin(), around.apart.end(), waits);
    return shares && !apart ? p.window_alone : p.window_shared;
}

}  // namespace gemlet::arbiter
