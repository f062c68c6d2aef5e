// Clients that co-run: what is observed of them, who of them has to take turns (contention.hpp), and what of the
// device each is charged for.
#include <utility>

#include "arbiter/arbiter_state.hpp"

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

bool Arbiter::State::beside(const Lease& lease) const {
    if (lease.accompanied) return true;
    const auto& all = leases.all();
    return std::any_of(all.begin(), all.end(),
                       [&](const Lease& other) { return other.runs() && other.client != lease.client; });
}

Rates Arbiter::State::observed(Lease& lease, Nanoseconds now) {
    const Nanoseconds since = std::max(lease.from, std::exchange(lease.observed, now));
    return lease.client->seen.take(now - since);
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
        client.standing.samples += rates.samples;
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
    std::vector<Party> parties;
    for (const auto& [id, client] : clients) {
        Lease* lease = leases.running(client.get());
        if (lease || client->waiting) client->active_at = now;
        if (client->active_at <= 0 || now - client->active_at > kLately) continue;
        const Members& group = *client->group;
        size_t active = 0;
        for (const Client* member : group.members) active += now - member->active_at <= kLately;
        Party party{client.get(), lease, {}, false, 0.0, false};
        party.target = policy->target(group) / static_cast<double>(std::max<size_t>(active, 1));
        if (lease) {
            party.beside = beside(*lease);
            party.rates = observed(*lease, now);
            party.age = static_cast<double>(now - lease->granted);
            party.goes_first = group.spec.priority == Priority::kLatency;
            for (const Lease& other : leases.all()) {
                if (other.runs() && other.group != &group)
                    party.goes_first = party.goes_first && policy->may_interrupt(group, *other.group, now);
            }
        }
        parties.push_back(party);
    }
    std::sort(parties.begin(), parties.end(), [](auto& a, auto& b) { return a.client->id < b.client->id; });
    for (Lease& lease : leases.all()) lease.accompanied = false;
    const bool changed = contention.judge(parties, now);
    if (changed) {
        for (Lease& lease : leases.all())
            if (lease.runs()) lease.exclusive = lease.client->exclusive();
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
    Lease* kept = behind ? leases.running(behind) : nullptr;
    for (Lease& lease : leases.all()) {
        if (lease.occupies() && lease.group == first && !kept) kept = &lease;
    }
    for (Lease& lease : leases.all()) {
        if (lease.occupies() && kept && &lease != kept && !Leases::co_run(lease, *kept)) lease.latest = now;
    }
    demand_changed = true;
    // Tokens that were parked beside others may have to be taken away, too.
    for (size_t i = 0; i < parked.size();) {
        Client& client = *parked[i];
        client.by_right = by_right(client, now);
        if (client.by_right || parks_beside(client))
            ++i;
        else
            take_parked(client, leases.next_serial(), now);
    }
}

// What each is charged for from now on. Pauses of who has the device to itself are its own only while others wait.
void Arbiter::State::set_rates(Nanoseconds now) {
    double all = 0.0;
    size_t running = 0;
    const bool somebody_waits =
        std::any_of(everyone.begin(), everyone.end(), [](const Group* g) { return g->waiting > 0; });
    for (const Lease& lease : leases.all()) running += lease.occupies();
    const auto use = [&](const Lease& lease) {
        const Observation& seen = lease.client->seen;
        if (running > 1) {
            if (!seen.known_beside()) return 1.0 / static_cast<double>(running);
            return std::max(kLeastRate, std::min(seen.beside().busy_part(), seen.beside().work_rate()));
        }
        return seen.known_alone() ? std::max(kLeastRate, seen.alone().busy_part()) : 1.0;
    };
    for (const Lease& lease : leases.all())
        if (lease.occupies() && !lease.exclusive) all += use(lease);
    for (Lease& lease : leases.all()) {
        if (!lease.occupies()) continue;
        if (lease.exclusive)
            lease.rate = 1.0;
        else
            lease.rate = use(lease) / (somebody_waits ? all : std::max(all, 1.0));
    }
}

}  // namespace gemlet::arbiter
