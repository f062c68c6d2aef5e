#include "arbiter/contention.hpp"

#include <algorithm>
#include <utility>

#include "arbiter/counters.hpp"

namespace gemlet::arbiter {
namespace {

// A client whose samples of its queues found work this often keeps the device busy.
constexpr double kBusy = 0.97;
// ... and this often, another client may well be waiting for it.
constexpr double kMostlyBusy = 0.85;
// Duties that come to no more than this fit the device together.
constexpr double kFits = 0.9;
// The part of its share that a client may lack before that counts, since hand-overs cost something, too.
constexpr double kTolerance = 0.95;
// The most that clients can do together where the hardware switches between them (0.91 on an H200).
constexpr double kSliced = 0.92;
// Ranks that take turns lose as much at the edges of their slots, where some wait for others, as slicing costs them.
// So they share while they get this much done together, of what they did alone.
constexpr double kRanksTogether = 0.945;
// A release was too early if it proves wrong within this many times the time for which the client was held back.
constexpr Nanoseconds kSoon = 4;
// Where requests are at stake, the first time is this many times as long.
constexpr Nanoseconds kRequests = 8;
// A request may be behind by this part of the time that it has taken so far.
constexpr double kOfRequest = 0.02;
constexpr double kSpeedSpan = 1e9;
// ns that a client may waste in its turns until it shares again: what it costs to find out anew that it should not.
constexpr double kWasted = (1.0 - kSliced) * static_cast<double>(Observation::kFilledTime);
// What turns save of each ns in which it is busy.
constexpr double kSaved = (1.0 - Observation::kWorthTurns) / Observation::kWorthTurns;

bool fit(const Party& a, const Party& b) {
    return a.client->sm + b.client->sm <= kFull;
}

// It always has work queued, and waits for it.
bool saturates(const Party& party) {
    const Observation& seen = party.client->seen;
    return party.peers.saturate && seen.hardly_empty(party.client->standing.evidence) &&
           (!party.peers.any || seen.mostly_busy()) && seen.known_beside() && seen.waiting() >= Observation::kWaits;
}

// With the device to itself; ranks are so together, and their trials cost more.
bool always_busy(const Party& party) {
    return party.peers.any ? party.duty() >= kFits : party.client->seen.duty() >= kBusy;
}

// Its turns leave the device idle too often. For a rank that is the time in which none of its gang needs its device.
bool pauses(const Party& party) {
    return party.peers.any ? party.duty() < kMostlyBusy : party.client->standing.wasted >= kWasted;
}

// Whether the hardware's slices serve them as well as turns would, since one of them is a rank.
bool well_sliced(const Party& a, double promised_a, const Party& b, double promised_b) {
    const Observation &one = a.client->seen, &other = b.client->seen;
    if (!one.known_together() || !other.known_together()) return true;  // it will show
    const double of_a = one.together().work_rate(), of_b = other.together().work_rate(), all = of_a + of_b;
    return all >= kRanksTogether && of_a >= promised_a * all && of_b >= promised_b * all;
}

// What it completed a ns since it last became exclusive or was released.
double pace(const Client& client, Nanoseconds since, Nanoseconds now) {
    const Nanoseconds done = growth(client.seen.work(), client.standing.completed);
    return static_cast<double>(done) / static_cast<double>(std::max<Nanoseconds>(now - since, 1));
}

bool same_kind(const Party& a, const Party& b) {
    const Workload one = a.client->group->spec.workload, other = b.client->group->spec.workload;
    return one == Workload::kUnknown || other == Workload::kUnknown || one == other;
}

}  // namespace

void Standing::ran_alone(const Rates& rates) {
    if (rates.samples <= 0.0) return;
    const double idle = 1.0 - rates.busy_part();
    samples += rates.samples;
    wasted = std::max(0.0, wasted + rates.time * (idle - kSaved * rates.busy_part()));
}

double Contention::promised(const Party& party) const {
    const double limit = 1.0 / std::max(1.0, party.client->group->spec.slowdown);
    return party.goes_first ? limit : std::min(limit, kTolerance * party.target);
}

// Somebody takes turns, so it may have to wait for its own.
bool Contention::in_turns(const Party& party) const {
    const Standing& standing = party.client->standing;
    return turns_ && !party.goes_first && (standing.contends() || !standing.exclusive());
}

double Contention::bound(const Party& party, bool trial) const {
    if (party.goes_first)
        return std::clamp(kOfRequest * party.age, static_cast<double>(p_.lag_latency), static_cast<double>(p_.lag));
    if (in_turns(party) && !party.in_slots) {  // so much its turn takes to come round
        const Standing& standing = party.client->standing;
        const double cycles = judged_at_ < standing.watched_until ? 0.5 : standing.contends() ? 2.0 : 1.0;
        return static_cast<double>(p_.lag) + promised(party) * cycles * static_cast<double>(p_.cycle_max);
    }
    // Turns of a gang are worth it only if they last: it has phases in which all its ranks wait, and others.
    if (party.peers.any && !turns_) return static_cast<double>(p_.cycle_max) / 2.0;
    return static_cast<double>(trial ? p_.lag / 2 : p_.lag);
}

// While somebody is on trial, less shows that it goes wrong.
double Contention::bound(const Party& party) const {
    return bound(party, trial_);
}

void Contention::observe(std::vector<Party>& parties, Nanoseconds now) {
    const Nanoseconds before = std::exchange(judged_at_, now);
    double total = 0.0;
    bool sliced = false;
    for (Party& party : parties) {
        if (!party.lease) continue;
        Observation& seen = party.client->seen;
        seen.presume_queueing(party.client->group->spec.min <= 0.0 || party.peers.any);
        if (party.beside) {
            seen.ran_beside(party.rates);
            total += seen.beside().work_rate() * party.client->sm;
            sliced |= !party.client->mps;
        } else {
            seen.ran_alone(party.rates);
            party.client->standing.ran_alone(party.rates);
        }
    }
    const bool open = std::any_of(parties.begin(), parties.end(),
                                  [](const Party& party) { return party.lease && !party.client->exclusive(); });
    const auto fall_behind = [&](const Party& party, double by) {
        if (party.target <= 0.0) return;  // it wants nothing now
        double& lag = party.client->standing.lag;
        const double most = bound(party);
        lag = std::clamp(lag + by, -most, 2.0 * most);
    };
    for (Party& party : parties) {
        Client& client = *party.client;
        const auto charged = static_cast<double>(std::exchange(client.charged, 0));
        const auto ran = static_cast<double>(std::exchange(client.ran, 0));
        auto wanted = ran + static_cast<double>(std::exchange(client.waited, 0));
        const auto waited = static_cast<double>(now - std::max(client.since, before));
        if (party.waits) wanted += waited;
        if (!party.in_slots && in_turns(party)) {
            // Its turn may come soon: what counts is its part of the device, not how fast it is meanwhile.
            double had = charged;
            if (!client.exclusive() || open)
                had = ran * (client.seen.known_beside() ? client.seen.speed(total, sliced ? kSliced : 1.0) : 1.0);
            // Time that counts for its maximum and in which it was slow is missing from its minimum, and stays so
            // while that maximum holds it back.
            fall_behind(party, promised(party) * wanted + kTolerance * party.held * waited - had);
        }
        if (!party.lease || party.rates.time <= 0.0) continue;
        client.standing.at_ease = party.beside && !party.peers.any && !client.exclusive() && !in_turns(party) &&
                                  client.seen.hardly_waits((1.0 - promised(party)) / 2.0);
        double speed = 1.0;
        if (party.beside) {
            if (!client.seen.known_beside(party.goes_first ? Observation::kEnoughOfRequests : Observation::kEnough))
                continue;
            speed = sliced ? client.seen.speed(total, kSliced) : client.seen.speed();
            // Its share is the length of its slots, in which it lacks whatever others cost it.
            if (party.in_slots)
                fall_behind(party, (kTolerance - speed) * party.rates.time);
            else if (!in_turns(party))
                fall_behind(party, (promised(party) - speed) * party.rates.time);
        } else if (party.peers.any && !in_turns(party)) {
            fall_behind(party, (promised(party) - client.seen.going()) * party.rates.time);
        }
        const double weight = std::min(1.0, party.rates.time / kSpeedSpan);
        client.speed = client.speed < 0.0 ? speed : client.speed + weight * (speed - client.speed);
    }
}

void Contention::make_exclusive(Party& party, Why why, Nanoseconds now) const {
    if (party.client->seen.unlike_alone()) party.client->seen.forget_alone();
    Standing& standing = party.client->standing;
    const bool soon = standing.released != kNever && now - standing.released < kSoon * standing.backoff;
    standing.failed = soon && party.peers.any && pace(*party.client, standing.released, now) < standing.pace;
    standing.completed = party.client->seen.work();
    if (why == Why::kBehind) standing.refuted = now < standing.watched_until;
    const bool again = soon && (!standing.misjudged || standing.failed);
    // A trial costs a service some of its requests.
    const Nanoseconds first = why == Why::kSlowed ? kRequests * p_.backoff_min : p_.backoff_min;
    standing.backoff = again ? std::min(2 * standing.backoff, p_.backoff_max) : first;
    // ... and ranks the time that it took, and what they then left on their devices.
    if (standing.failed)
        standing.backoff = std::clamp(kRequests * (now - standing.released), standing.backoff, p_.backoff_max);
    standing.why = why;
    standing.since = now;
    standing.samples = standing.wasted = 0.0;
}

void Contention::make_shared(Client& client, Nanoseconds now) const {
    client.standing.pace = pace(client, client.standing.since, now);
    client.standing.completed = client.seen.work();
    if (client.standing.why == Why::kBehind) client.standing.watched_until = now + kSoon * client.standing.backoff;
    client.standing.why = Why::kShares;
    client.standing.released = now;
    client.standing.misjudged = false;
    client.standing.lag = 0.0;
}

// Programs that come and go cost somebody its promise before it is known how they use the device, and the next ones
// begin unknown again. So for a while those that come take turns first; twice as long if it was too short.
void Contention::presume(Nanoseconds now) {
    if (presumes(now)) return;
    const bool again = presumes_for_ > 0 && now - presumes_until_ < presumes_for_;
    presumes_for_ = again ? std::min(2 * presumes_for_, kSoon * p_.backoff_max) : kSoon * p_.backoff_min;
    presumes_until_ = now + presumes_for_;
}

bool Contention::engage(std::vector<Party>& parties, Nanoseconds now) {
    bool changed = false;
    const auto exclude = [&](Party& party, Why why) {
        const Standing& standing = party.client->standing;
        if (standing.why == why || (standing.exclusive() && !standing.contends())) return;
        make_exclusive(party, why, now);
        changed = true;
    };
    // Whether `other` runs, and takes from `party` what that has, or would have if its turn came.
    const auto beside = [](const Party& party, const Party& other) {
        return other.lease && &party != &other && !fit(party, other) &&
               compatible(party.client->why(), other.client->why());
    };
    std::vector<Party*> saturating;
    for (Party& party : parties)
        if (party.lease && saturates(party)) saturating.push_back(&party);
    for (size_t i = 0; i < saturating.size(); ++i) {
        for (size_t j = i + 1; j < saturating.size(); ++j) {
            Party &a = *saturating[i], &b = *saturating[j];
            if (!beside(a, b)) continue;
            if ((a.peers.any || b.peers.any) && well_sliced(a, promised(a), b, promised(b))) continue;
            const bool mps = a.client->mps && b.client->mps;
            const bool known = a.client->seen.known_alone() && b.client->seen.known_alone();
            if (mps && (known || !same_kind(a, b))) continue;
            for (Party* one : {&a, &b}) exclude(*one, mps ? Why::kUnverified : Why::kBothBusy);
        }
    }
    // A trial decides only about those on trial.
    const auto tried = [&](const Party& party, const Party& victim) {
        return victim.client->standing.lag >= bound(victim, false) || party.client->standing.on_trial(now);
    };
    for (Party& victim : parties) {
        const bool contends = victim.client->why() == Why::kBothBusy;
        if (!in_turns(victim) && !victim.in_slots && (!victim.lease || !victim.beside || victim.client->exclusive()))
            continue;
        if (victim.target <= 0.0 || victim.client->standing.lag < bound(victim) || !victim.peers.behind) continue;
        if (std::any_of(parties.begin(), parties.end(), [&](const Party& other) {
                return beside(victim, other) && now - other.client->came < p_.backoff_min;
            }))
            presume(now);
        if (victim.goes_first) {
            exclude(victim, Why::kSlowed);
            continue;
        }
        // Each of many would cost it as much if it waited to be behind beside every one of them.
        Standing& standing = victim.client->standing;
        const bool once_more = standing.spared != kNever && now - standing.spared < p_.backoff_min;
        bool found = false;
        for (Party& other : parties) {
            if (once_more || !beside(victim, other)) continue;
            const Observation& seen = other.client->seen;
            const bool ahead = seen.speed() >= promised(other) || !other.peers.behind;
            if (ahead && seen.beside().busy_part() >= kMostlyBusy && tried(other, victim)) {
                exclude(other, contends ? Why::kBothBusy : Why::kAhead);
                found = true;
            }
        }
        if (found) standing.spared = now;
        if (!found && tried(victim, victim)) exclude(victim, Why::kBehind);
    }
    return changed;
}

// That it should not take turns is known, not tried. A verdict that was wrong at once needs twice the evidence next
// time, and none of it is that which was wrong.
void Contention::reconsider(Standing& standing, Nanoseconds now) const {
    const bool at_once = now - standing.since < p_.backoff_min;
    const Nanoseconds needed = std::max(standing.evidence, Observation::kFilledTime);
    standing.evidence = at_once ? std::min(2 * needed, p_.backoff_min) : 0;
    standing.misjudged = true;
}

// Whether slices alone, of which each has as many as it needs or as the others have, would keep somebody below what
// it is promised. A trial of that costs ranks much more than it tells.
bool Contention::slices_would_not_do(const std::vector<Party>& parties) const {
    std::vector<const Party*> by_duty;
    for (const Party& party : parties) {
        // Slices go also to one to which the others leave nothing.
        const bool wants = party.target > 0.0 || party.lease || party.client->waiting;
        if (!party.client->mps && wants) by_duty.push_back(&party);
    }
    std::sort(by_duty.begin(), by_duty.end(), [](const Party* a, const Party* b) { return a->duty() < b->duty(); });
    double left = 1.0;
    for (size_t i = 0; i < by_duty.size(); ++i) {
        const double slices = std::min(by_duty[i]->duty(), left / static_cast<double>(by_duty.size() - i));
        if (slices < promised(*by_duty[i]) * by_duty[i]->duty()) return true;
        left -= slices;
    }
    return false;
}

bool Contention::release(std::vector<Party>& parties, Nanoseconds now) const {
    const bool ranks = std::any_of(parties.begin(), parties.end(), [](const Party& p) { return p.peers.any; });
    const bool only_turns_do = ranks && slices_would_not_do(parties);
    double duties = 0.0;
    bool measured = true;
    size_t contend = 0;
    size_t saturate = 0;  // where the hardware switches between them, two of these are always in each other's way
    for (const Party& party : parties) {
        const Client& client = *party.client;
        duties += party.duty();
        contend += client.why() == Why::kBothBusy;
        const bool known = client.seen.known_alone() || client.seen.always_waits();
        saturate += !client.mps && known && always_busy(party);
        if (client.exclusive()) measured &= client.standing.samples >= Observation::kEnough;
    }
    bool changed = false;
    for (Party& party : parties) {
        Client& client = *party.client;
        const Standing& standing = client.standing;
        if (!standing.exclusive() || standing.why == Why::kAlways) continue;
        const bool known = standing.samples >= Observation::kEnough;
        const bool needs_turns = party.peers.any && only_turns_do;
        const bool misjudged =
            standing.contends() && ((contend == 1 && !party.in_slots) || (known && pauses(party) && !needs_turns) ||
                                    client.seen.waiting() < Observation::kWaits / 2.0);
        const bool tried_enough = now - standing.since >= standing.backoff;
        // That the parties said to need less than the device is refuted once one was behind all the same.
        const bool room = measured && duties <= kFits && (!standing.refuted || tried_enough);
        // Requests cannot be served without delay beside one of these either.
        const bool hopeless =
            standing.why == Why::kSlowed ? saturate > 0 : needs_turns || (saturate > 1 && always_busy(party));
        const bool decided = standing.contends() && !party.peers.any;  // by what it wastes
        const bool on_trial = !hopeless && !decided && tried_enough;
        // How long ranks wait for each other in slices does not show while they take turns.
        const bool failed = party.peers.any && standing.failed && !tried_enough;
        if (failed || (!misjudged && !room && !on_trial)) continue;
        make_shared(client, now);
        if (misjudged) {
            reconsider(client.standing, now);
            client.seen.forget_filled();
        }
        changed = true;
    }
    return changed;
}

bool Contention::judge(std::vector<Party>& parties, Nanoseconds now) {
    trial_ = std::any_of(parties.begin(), parties.end(),
                         [&](const Party& party) { return party.client->standing.on_trial(now); });
    turns_ =
        std::any_of(parties.begin(), parties.end(), [](const Party& party) { return party.client->exclusive(); });
    observe(parties, now);
    for (Party& party : parties) party.client->standing.behind = party.client->standing.lag >= bound(party);
    furthest_behind_ = nullptr;
    double most = 0.0;
    for (const Party& party : parties) {
        if (!party.lease || party.client->standing.lag <= most) continue;
        most = party.client->standing.lag;
        furthest_behind_ = party.client;
    }
    const bool engaged = engage(parties, now);
    const bool released = !engaged && release(parties, now);
    if (!engaged && !released) return false;
    for (Party& party : parties) {
        // What changed may help others only. One that lacks something of its minimum, or in its turns, goes on
        // lacking it, else those who come, go and change would keep it from ever being found behind.
        const Client& client = *party.client;
        double& lag = party.client->standing.lag;
        const bool waits_for_turns = client.standing.contends() || (client.group->spec.min > 0.0 && in_turns(party));
        const bool goes_on = waits_for_turns && !party.peers.any && lag < bound(party);
        lag = goes_on ? std::max(lag, 0.0) : 0.0;
        party.client->seen.forget_beside();
    }
    return true;
}

}  // namespace gemlet::arbiter
