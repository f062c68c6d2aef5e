// Clients that co-run: what is observed of them, who of them has to take turns (contention.hpp), and what of the
// device each is charged for.
#include <algorithm>
#include <utility>

#include "arbiter/arbiter_state.hpp"
#include "arbiter/counters.hpp"

namespace gemlet::arbiter {
namespace {

// A client that ran or waited this recently is still a party, because its pause may end any moment.
constexpr Nanoseconds kLately = 200'000'000;
// A client that is seen to use nothing pays something nevertheless.
constexpr double kLeastRate = 0.01;

}  // namespace

// The policy, or its user, may want it to take turns always.
void Arbiter::State::pin(Client& client) const {
    const bool always = !policy->open() || client.group->spec.workload == Workload::kAlone;
    if (always)
        client.standing.why = Why::kAlways;
    else if (client.standing.why == Why::kAlways)
        client.standing = {};
    // Requests are protected until it has shown that they need no protection.
    if (client.group->spec.priority == Priority::kLatency && !client.exclusive() &&
        client.standing.released == kNever)
        client.standing = {.why = Why::kSlowed, .since = clock, .backoff = 2 * p.backoff_min};
}

// It asks for the device for the first time.
void Arbiter::State::comes(Client& client) {
    client.came = clock;
    if (client.exclusive() || client.group->peers.any || !contention.presumes(clock)) return;
    client.standing = {.why = Why::kAhead, .since = clock, .backoff = p.backoff_min};
    ++standings_changed;
}

bool Arbiter::State::beside(const Lease& lease) const {
    if (lease.accompanied) return true;
    const auto& all = leases.all();
    return std::any_of(all.begin(), all.end(),
                       [&](const Lease& other) { return other.runs() && other.client != lease.client; });
}

Rates Arbiter::State::observed(Lease& lease, Nanoseconds now) {
    const Nanoseconds since = std::max(lease.from, std::exchange(lease.observed, now));
    lease.client->ran += now - since;
    // A look stands for the time until the next one.
    const double samples = static_cast<double>(lease.conditions.poll) / static_cast<double>(p.poll_shared);
    Rates rates = lease.client->seen.take(now - since, lease.conditions.shared ? std::max(1.0, samples) : 1.0);
    rates.freely = lease.conditions.window >= p.window_alone;
    const auto& all = leases.all();
    rates.disturbed = std::any_of(all.begin(), all.end(),
                                  [&](const Lease& other) { return other.client != lease.client && !other.runs(); });
    return rates;
}

// It ends now. Too short to judge anybody by, but what it did alone, or beside others, is news.
void Arbiter::State::observe_last(Lease& lease, Nanoseconds now) {
    const bool others = beside(lease);
    const Rates rates = observed(lease, now);
    Client& client = *lease.client;
    client.active_at = now;
    if (others) {
        client.seen.ran_beside(rates);
        for (Lease& other : leases.all()) other.accompanied |= other.runs() && other.client != &client;
    } else {
        client.seen.ran_alone(rates);
        client.standing.ran_alone(rates);
    }
}

// Where nobody co-runs and everybody is bound to take turns there is nothing to observe.
bool Arbiter::State::observing() const {
    const auto& all = leases.all();
    const auto running = std::count_if(all.begin(), all.end(), [](const Lease& lease) { return lease.runs(); });
    if (running == 0) return false;
    return std::any_of(clients.begin(), clients.end(),
                       [](const auto& c) { return c.second->standing.why != Why::kAlways; });
}

bool Arbiter::State::trial(Nanoseconds now) const {
    const auto& all = leases.all();
    return std::any_of(all.begin(), all.end(),
                       [&](const Lease& lease) { return lease.occupies() && lease.client->standing.on_trial(now); });
}

void Arbiter::State::observe(Nanoseconds now) {
    observe_at = now + p.observe;
    if (!observing()) return;
    for (const auto& group : groups)
        if (group) group->active = 0;
    for (const auto& [id, client] : clients) client->lease = nullptr;
    for (Lease& lease : leases.all())
        if (lease.runs() && !lease.client->lease) lease.client->lease = &lease;
    for (const auto& [id, client] : clients) {
        if (client->lease || client->waiting) client->active_at = now;
        client->group->active += now - client->active_at <= kLately;
    }
    std::vector<Party> parties;
    for (const auto& [id, client] : clients) {
        if (client->active_at <= 0 || now - client->active_at > kLately) continue;
        const Members& group = *client->group;
        Lease* lease = client->lease;
        Party party{.client = client.get(),
                    .lease = lease,
                    .rates = {},
                    .beside = false,
                    .target = 0.0,
                    .waits = client->waiting && !group.at_maximum && admits(*client),
                    .in_slots = group.planned > 0.0,
                    .goes_first = false,
                    .peers = group.peers};
        const auto active = static_cast<double>(std::max<size_t>(group.active, 1));
        party.target = policy->target(group) / active;
        if (client->waiting && group.at_maximum) party.held = std::min(party.target, group.spec.min / active);
        if (lease) {
            party.beside = beside(*lease);
            party.rates = observed(*lease, now);
            party.age = static_cast<double>(now - lease->granted);
            party.goes_first = group.spec.priority == Priority::kLatency;
            if (party.goes_first)
                party.goes_first = std::all_of(leases.all().begin(), leases.all().end(), [&](const Lease& other) {
                    return !other.runs() || other.group == &group || policy->may_interrupt(group, *other.group, now);
                });
        }
        parties.push_back(party);
    }
    std::sort(parties.begin(), parties.end(), [](auto& a, auto& b) { return a.client->id < b.client->id; });
    for (Lease& lease : leases.all()) lease.accompanied = false;
    const bool changed = contention.judge(parties, now);
    if (changed) {
        ++standings_changed;
        for (Lease& lease : leases.all())
            if (lease.runs()) lease.why = lease.client->why();
        for (const auto& group : groups)
            if (group) recount(*group);
        policy->turns_begin(everyone, now);
        separate(now);
    }
    set_rates(now);
}

// Of the running clients that may no longer co-run, the one furthest behind goes on, or the one that the policy
// would pick.
void Arbiter::State::separate(Nanoseconds now) {
    Groups running;
    for (const Group* g : everyone)
        if (g->running) running.push_back(g);
    const Group* first = running.empty() ? nullptr : policy->pick(running, now);
    const Client* behind = contention.furthest_behind();
    std::vector<Lease*> ordered;
    for (Lease& lease : leases.all())
        if (lease.occupies()) ordered.push_back(&lease);
    std::stable_partition(ordered.begin(), ordered.end(), [&](const Lease* lease) { return lease->group == first; });
    std::stable_partition(ordered.begin(), ordered.end(),
                          [&](const Lease* lease) { return lease->client == behind; });
    std::vector<Lease*> kept, stopping;
    for (Lease* lease : ordered) {
        const bool goes_on =
            std::all_of(kept.begin(), kept.end(), [&](const Lease* other) { return Leases::co_run(*lease, *other); });
        (goes_on ? kept : stopping).push_back(lease);
    }
    for (Lease* lease : kept) {
        if (std::all_of(stopping.begin(), stopping.end(),
                        [&](const Lease* other) { return Leases::co_run(*lease, *other); }))
            continue;
        leases.slice(*lease, now);
        lease->granted = now;
    }
    for (Lease* lease : stopping) {
        leases.slice(*lease, now);
        lease->latest = now;
    }
    demand_changed = true;
    for (Client* client : parked) client->by_right = by_right(*client, now);
    unpark_in_the_way(leases.next_serial(), now);
}

// Part of the time in which it uses its multiprocessors, as far as it is known.
double Arbiter::State::use_of(const Lease& lease, size_t running, double presumed) const {
    const Observation& seen = lease.client->seen;
    if (running > 1) {
        // No more than alone: what it is thought to take the others are not charged for.
        if (!seen.known_beside()) return std::clamp(seen.use_alone(), kLeastRate, presumed);
        return std::max(kLeastRate, std::min(seen.beside().busy_part(), seen.beside().work_rate()));
    }
    return std::max(kLeastRate, seen.use_alone());
}

// The hardware slices what lingers with what runs, so all have equal parts, unless the others say that they did more,
// or less: what lingers is stopped, or they pause. What they have not said yet may be either.
void Arbiter::State::set_rates_of_lingering(size_t running) {
    lingering.clear();
    for (Lease& lease : leases.all()) {
        if (!lease.is_lingering()) continue;
        lease.slice = 0.0;
        if (!leases.runs_again(lease)) lingering.push_back(&lease);
    }
    if (lingering.empty()) return;
    const auto contexts = static_cast<double>(running + lingering.size());
    double unsaid = 0.0;
    for (const auto& [id, client] : clients) unsaid += static_cast<double>(client->seen.unsaid());
    for (Lease* lease : lingering) {
        lease->slice = 1.0 / contexts;
        if (heard <= lease->lingers || contexts <= 1.0) continue;  // nobody else does anything now
        const auto time = static_cast<double>(heard - lease->lingers);
        const auto done =
            static_cast<double>(static_cast<uint64_t>(growth(work_beside(*lease->client), lease->others)));
        const double of_others = unsaid - static_cast<double>(lease->client->seen.unsaid());
        const double most = std::clamp(1.0 - (done - of_others) / time, 0.0, 1.0);
        const double least = std::clamp(1.0 - (done + of_others) / time, 0.0, most);
        lease->slice = std::clamp(lease->slice, least, most);
    }
}

// What each is charged for from now on, as part of the time on its multiprocessors. Those that are in nobody's way
// pay for what they use. Those that keep somebody waiting pay for the rest of the time, pauses included; if they
// share it, in proportion to what each may have of it.
void Arbiter::State::set_rates(Nanoseconds now) {
    const bool sharing_blocks = std::any_of(clients.begin(), clients.end(), [this](const auto& c) {
        return c.second->waiting && admits(*c.second) && !compatible(Why::kShares, c.second->why());
    });
    const auto blocks = [&](const Lease& lease) { return lease.why != Why::kShares || sharing_blocks; };
    size_t running = 0;
    double sm = 0.0;
    for (const auto& group : groups)
        if (group) group->leases = 0;
    for (const Lease& lease : leases.all()) {
        if (!lease.in_the_way()) continue;
        ++running;
        sm += lease.sm;
        ++static_cast<Members&>(*lease.group).leases;
    }
    const auto part = [&](const Lease& lease) {
        const auto members = static_cast<double>(static_cast<Members&>(*lease.group).leases);
        return std::max(policy->target(*lease.group), kLeastRate) / members;
    };
    // Those of whom nothing is known are thought to take equal parts. One with a maximum, whose turns may be too
    // short for it ever to be known, all that the others leave, if that is more.
    double known = 0.0;
    size_t unknown = 0;
    for (const Lease& lease : leases.all()) {
        if (!lease.in_the_way() || blocks(lease)) continue;
        const Observation& seen = lease.client->seen;
        if (seen.known_beside() || seen.known_alone())
            known += use_of(lease, running, 1.0) * lease.sm;
        else
            ++unknown;
    }
    const double rest = std::max(0.0, 1.0 - known) / static_cast<double>(std::max<size_t>(unknown, 1));
    const double equal = 1.0 / std::max(1.0, sm);
    const auto use = [&](const Lease& lease) {
        return use_of(lease, running, lease.group->spec.max < 1.0 ? std::max(equal, rest) : equal);
    };
    double used = 0.0, parts = 0.0;  // of the device
    for (const Lease& lease : leases.all()) {
        if (!lease.in_the_way()) continue;
        if (!blocks(lease))
            used += use(lease) * lease.sm;
        else if (lease.why == Why::kShares)
            parts += part(lease);
    }
    const double left = std::max(kLeastRate, 1.0 - used);
    const auto& all = leases.all();
    const auto sliced = std::count_if(all.begin(), all.end(), [](const Lease& lease) { return lease.sliced; });
    // Those that must stop have not drained yet. A host that never says so is not waited for.
    const bool slicing = std::any_of(all.begin(), all.end(), [&](const Lease& lease) {
        return lease.sliced && (!lease.runs() || lease.latest <= now) && now - lease.not_before <= p.cycle_max;
    });
    set_rates_of_lingering(running);
    const auto beside_lingering = [&](const Lease& lease) {
        double left_by_them = 1.0;
        for (const Lease* other : lingering)
            if (other->client != lease.client && other->sm + lease.sm > kFull) left_by_them -= other->slice;
        return std::max(left_by_them, kLeastRate);
    };
    for (Lease& lease : leases.all()) {
        if (!lease.occupies()) continue;
        lease.sliced &= slicing;
        if (lease.catches_up)
            lease.rate = 0.5;  // the hardware slices what it submits and what those do whose slot it is
        else if (lease.sliced)
            lease.rate = 1.0 / static_cast<double>(sliced);
        else if (!blocks(lease))
            lease.rate = std::min(use(lease) / std::max(used, 1.0), beside_lingering(lease));
        else
            lease.rate = std::min(1.0, (lease.why == Why::kShares ? left * part(lease) / parts : left) / lease.sm) *
                         beside_lingering(lease);
    }
}

}  // namespace gemlet::arbiter
