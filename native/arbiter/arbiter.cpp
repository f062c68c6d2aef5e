#include "arbiter/arbiter.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "arbiter/arbiter_state.hpp"
#include "arbiter/counters.hpp"

namespace gemlet::arbiter {
namespace {

// How late the news may be that a client was faster than the order to take its parked token away.
constexpr Nanoseconds kTakeRace = 1'000'000;
// How long a group that was removed still counts, and how many such groups.
constexpr Nanoseconds kRemembered = 1'000'000'000;
constexpr std::ptrdiff_t kMostRemembered = 128;

void check(const GroupSpec& spec) {
    const auto refuse = [&](const char* why) { throw std::invalid_argument("group '" + spec.name + "': " + why); };
    if (!(spec.min >= 0.0 && spec.min <= 1.0)) refuse("min must be between 0 and 1");
    if (!(spec.max >= 0.0 && spec.max <= 1.0)) refuse("max must be between 0 and 1");
    if (spec.min > spec.max) refuse("min is above max");
    if (!(spec.weight > 0.0 && std::isfinite(spec.weight))) refuse("weight must be above 0");
    if (!(spec.sm > 0.0 && spec.sm <= 1.0)) refuse("sm must be above 0 and at most 1");
    if (!(spec.slowdown >= 1.0 && std::isfinite(spec.slowdown))) refuse("slowdown must be at least 1");
}

void check(const Parameters& p) {
    if (!(p.switch_loss > 0.0 && p.switch_loss < 1.0)) throw std::invalid_argument("switch_loss must be in (0, 1)");
    if (!(p.interrupt_loss >= 0.0 && p.interrupt_loss < 1.0))
        throw std::invalid_argument("interrupt_loss must be in [0, 1)");
    if (p.latency_quiet < 0) throw std::invalid_argument("latency_quiet is below 0");
    if (p.switch_cost < 0 || p.switch_cost_mps < 0 || p.grace < 0 || p.debt_max < 0)
        throw std::invalid_argument("a time is below 0");
    if (p.quantum_min <= 0 || p.cap_block <= 0)
        throw std::invalid_argument("quantum_min, cap_block: must be above 0");
    if (p.cycle_min <= 0 || p.cycle_max < p.cycle_min)
        throw std::invalid_argument("cycle_min must be in (0, cycle_max]");
    if (p.observe <= 0 || p.lag <= 0 || p.lag_latency <= 0 || p.backoff_min <= 0 || p.backoff_max < p.backoff_min)
        throw std::invalid_argument("observe, lag, lag_latency, backoff_min: must be above 0, backoff_max no less");
    if (p.poll_alone <= 0 || p.poll_shared <= 0 || p.poll_contended <= 0 || p.idle_alone <= 0 ||
        p.idle_contended <= 0 || p.idle_most < p.idle_contended)
        throw std::invalid_argument("poll_*, idle_*: must be above 0, idle_most no less than idle_contended");
    if (p.slack <= 0 || p.finish < 0) throw std::invalid_argument("slack: must be above 0, finish no less than 0");
    if (p.gemini_base_quota <= 0 || p.gemini_min_quota <= 0 || p.gemini_window <= 0) {
        throw std::invalid_argument("a gemini time must be above 0");
    }
}

}  // namespace

// --- the course of an event --------------------------------------------------------------------------------------

Nanoseconds Arbiter::State::begin(Nanoseconds now) {
    const Nanoseconds before = std::exchange(clock, std::max(clock, now));
    for (const auto& group : groups) {
        if (group && group->at_maximum) group->throttled += clock - before;
    }
    leases.charge(clock);
    expire(clock);
    forget_removed();
    if (clock >= observe_at && !observing()) observe_at = clock + p.observe;
    return clock;
}

void Arbiter::State::forget(Members& group) {
    leases.forget(&group);
    std::erase(everyone, &group);
    demand_changed = true;
    groups[group.slot].reset();
}

// What a group is ahead of its share is owed to the others, also once it is gone: else a user whose groups come and
// go would owe nothing, ever. Of too many those go first that have used least.
void Arbiter::State::forget_removed() {
    if (everyone.size() == groups_by_id.size()) return;  // as nearly always
    std::ptrdiff_t remembered = 0;
    Members* least = nullptr;
    for (const auto& group : groups) {
        if (!group || group->removed == kNever) continue;
        if (clock - group->removed >= kRemembered) {
            forget(*group);
            continue;
        }
        ++remembered;
        if (!least || group->used < least->used) least = group.get();
    }
    if (remembered > kMostRemembered) forget(*least);
}

// Only an event before which all who run have said what they did: to look at any other would be to find that time has
// passed and nothing was done in it, and events that come often enough would leave no other look.
Nanoseconds Arbiter::State::begin_told(Nanoseconds now) {
    now = begin(now);
    heard = now;
    if (now >= observe_at) observe(now);
    return now;
}

void Arbiter::State::settle(Nanoseconds now) {
    update_demand(now);
    admit_late_ranks(now);
    grant_while_possible(now);
    set_rates(now);
    update_terms(now);
    park_or_not(now);
    for (const auto& group : groups) {
        if (group) group->at_maximum = group->waiting > 0 && !group->running && policy->at_maximum(*group, now);
    }
}

// Holders that do not stop no longer keep others waiting; drains that nobody reports end as estimated.
void Arbiter::State::expire(Nanoseconds now) {
    auto& all = leases.all();
    for (size_t i = 0; i < all.size();) {
        Lease& lease = all[i];
        if (!lease.runs() && now - lease.stopped >= p.debt_max) {
            leases.finish(lease, lease.is_lingering() ? now : lease.end, now);
            continue;
        }
        if (!lease.runs() && !lease.is_lingering() && !lease.sliced && now - lease.end >= p.grace)
            leases.linger(lease, work_beside(*lease.client), now);
        if (lease.occupies() && lease.deadline != kNever && now - lease.deadline >= grace) {
            lease.overdue = true;
            leases.linger(lease, work_beside(*lease.client), now);
            recount(static_cast<Members&>(*lease.group));
        }
        ++i;
    }
}

void Arbiter::State::update_demand(Nanoseconds now) {
    bool changed = std::exchange(demand_changed, false);
    for (const auto& group : groups) {
        if (!group || group->wants(now) == group->wanted) continue;
        group->wanted = !group->wanted;
        changed = true;
    }
    if (changed) policy->demand(everyone, now);
}

// --- look-ups ----------------------------------------------------------------------------------------------------

void Arbiter::State::recount(Members& group) {
    if (group.running || group.waiting > 0) group.busy_at = clock;
    group.running = false;
    group.sm = group.members.empty() ? 1.0 : 0.0;
    group.exclusive = group.apart = false;
    for (const Client* client : group.members) {
        group.sm = std::max(group.sm, client->sm);
        group.exclusive |= client->exclusive();
        group.apart |= !compatible(Why::kShares, client->why());
    }
    for (const Lease& lease : leases.all()) group.running |= lease.group == &group && lease.occupies();
    group.clients = static_cast<uint32_t>(group.members.size());
    group.waiting = 0;
    group.waiting_since = kNever;
    for (const Client* client : group.members) {
        if (!client->waiting) continue;
        ++group.waiting;
        group.waiting_since = std::min(group.waiting_since, client->since);
    }
}

// One client outside MPS is enough for the hardware to switch contexts.
void Arbiter::State::client_count_changed() {
    const bool mps =
        !clients.empty() && std::all_of(clients.begin(), clients.end(), [](auto& c) { return c.second->mps; });
    policy->switch_cost(mps ? p.switch_cost_mps : p.switch_cost);
}

Client* Arbiter::State::find(ClientId id) {
    const auto found = clients.find(id);
    if (found != clients.end()) return found->second.get();
    ++ignored;
    return nullptr;
}

Members* Arbiter::State::find_group(GroupId id) const {
    const auto found = groups_by_id.find(id);
    return found == groups_by_id.end() ? nullptr : found->second;
}

std::string Arbiter::State::reason(const Members& group, Nanoseconds now) const {
    bool late = false;
    for (const Lease& lease : leases.all()) late |= lease.group == &group && lease.runs() && lease.overdue;
    if (group.running) return "runs";
    if (late) return "was told to stop and still runs";
    if (group.planned > 0.0 && group.waiting > 0 && group.id != reservation.gang)
        return "waits for its turn on all its devices at the same time";
    if (group.waiting == 0) {
        for (const Client* client : parked) {
            if (client->group == &group) return "idle: may run at once, nobody else waits";
        }
        return group.clients ? "idle" : "no clients";
    }
    if (std::string why = policy->blocked(group, clock); !why.empty()) return why;
    for (const Lease& lease : leases.all()) {
        if (!lease.occupies()) continue;
        const std::string holder = "waits: '" + lease.group->spec.name + "' ";
        char text[64] = "holds the token";
        const double left = static_cast<double>(lease.deadline - now) / 1e6;
        if (lease.deadline != kNever && left >= 0)
            std::snprintf(text, sizeof text, "holds the token for %.0f ms more", std::ceil(left));
        if (lease.deadline != kNever && left < 0) std::snprintf(text, sizeof text, "is %.1f ms late to stop", -left);
        return holder + text;
    }
    return "waits";
}

// --- events ------------------------------------------------------------------------------------------------------

Arbiter::Arbiter(const std::string& policy, Parameters parameters) {
    check(parameters);
    state_ = std::make_unique<State>(policy, parameters);
}
Arbiter::~Arbiter() = default;

GroupId Arbiter::set_group(const GroupSpec& spec, Nanoseconds now) {
    check(spec);
    State& s = *state_;
    now = s.begin(now);
    s.demand_changed = true;
    ++s.changes;
    for (const auto& group : s.groups) {
        if (!group || group->spec.name != spec.name) continue;
        group->spec = spec;
        if (std::exchange(group->removed, kNever) != kNever) {  // for those who see it, it is another one
            s.groups_by_id.emplace(group->id, group.get());
            group->before = group->used;
            group->throttled = 0;
        }
        s.policy->changed(*group, now);
        s.keep_rights(*group, now);
        for (Client* client : group->members) s.pin(*client);
        ++s.standings_changed;
        s.recount(*group);
        s.settle(now);
        return group->id;
    }
    size_t slot = 0;
    while (slot < s.groups.size() && s.groups[slot]) ++slot;
    if (slot == s.groups.size()) s.groups.emplace_back();
    auto group = std::make_unique<Members>();
    group->id = ++s.last_group;
    group->slot = slot;
    group->spec = spec;
    s.everyone.push_back(group.get());
    s.groups_by_id.emplace(group->id, group.get());
    s.groups[slot] = std::move(group);
    s.policy->added(*s.groups[slot], now);
    s.settle(now);
    return s.groups[slot]->id;
}

void Arbiter::remove_group(GroupId id, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Members* group = s.find_group(id);
    if (!group) {
        ++s.ignored;
        return;
    }
    if (!group->members.empty()) throw std::invalid_argument("group '" + group->spec.name + "' still has clients");
    s.groups_by_id.erase(id);
    if (group->used > 0)
        group->removed = s.clock;
    else
        s.forget(*group);
    s.demand_changed = true;
    ++s.changes;
    s.settle(now);
}

void Arbiter::add_client(ClientId id, GroupId group_id, Nanoseconds now, bool mps) {
    State& s = *state_;
    now = s.begin(now);
    Members* group = s.find_group(group_id);
    if (!group || s.clients.contains(id)) {
        ++s.ignored;
        return;
    }
    auto client = std::make_unique<Client>();
    client->id = id;
    client->group = group;
    client->mps = mps;
    client->sm = mps ? group->spec.sm : 1.0;
    group->members.push_back(client.get());
    group->busy_at = now;  // its first request is near
    s.pin(*client);
    ++s.standings_changed;
    s.clients.emplace(id, std::move(client));
    ++s.changes;
    s.recount(*group);
    s.client_count_changed();
    s.settle(now);
}

void Arbiter::remove_client(ClientId id, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    if (!client) return;
    Members& group = *client->group;
    s.raise_level(group);
    while (Lease* lease = s.leases.running(client)) {
        s.observe_last(*lease, now);
        s.policy->stopped(lease->turn(), StopReason::kExit, now);
        s.leases.stop(*lease, 0, now);
        Lease& stopped = *s.leases.newest(client);
        s.leases.finish(stopped, stopped.ends(now), now);  // one that did not stop in time pays no more for it
    }
    while (Lease* lease = s.leases.draining(client)) s.leases.finish(*lease, lease->ends(now), now);
    s.unpark(*client);
    std::erase(group.members, client);
    if (client->sm >= 1.0) s.work_of_gone = sum_of(s.work_of_gone, client->seen.work());
    s.clients.erase(id);
    ++s.changes;
    s.recount(group);
    s.client_count_changed();
    s.settle(now);
}

void Arbiter::request(ClientId id, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    if (client && (client->waiting || s.leases.running(client))) {
        ++s.ignored;
    } else if (client) {
        s.raise_level(*client->group);
        client->used = std::max(client->used, client->group->level);  // time away is not saved up
        client->waiting = true;
        s.unpark(*client);
        client->unparked_for = 0;
        client->since = now;
        if (client->came == kNever) s.comes(*client);
        s.recount(*client->group);
    }
    s.settle(now);
}

bool Arbiter::cancel(ClientId id, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    const bool waited = client && client->waiting;
    if (waited) {
        client->waiting = false;
        s.recount(*client->group);
    }
    s.settle(now);
    return waited;
}

void Arbiter::took(ClientId id, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    if (!client) return s.settle(now);
    if (!s.unpark(*client)) {
        // Legal only if it was faster than the order that took its parked token away. Those who were granted since
        // and are in its way get their grants taken back and wait on.
        if (!client->unparked_for || client->waiting || now - client->unparked_at > kTakeRace) {
            ++s.ignored;
            return s.settle(now);
        }
        auto& all = s.leases.all();
        while (!all.empty() && all.back().serial >= client->unparked_for && all.back().occupies() &&
               !s.may_run(*client))
            s.take_back(all.back(), now);
    }
    Lease& lease = s.lease_for(*client, now);
    lease.sent = Lease::Sent::kTook;
    s.make_room(lease, now);
    s.settle(now);
}

void Arbiter::stopped(ClientId id, StopReason reason, Nanoseconds tail, Nanoseconds now, bool unused) {
    State& s = *state_;
    now = s.begin_told(now);
    Client* client = s.find(id);
    Lease* lease = client ? s.leases.running(client) : nullptr;
    if (client && !lease) ++s.ignored;
    if (lease) {
        s.demand_changed = true;
        client->group->moved = now;
        s.observe_last(*lease, now);
        s.policy->stopped(lease->turn(), reason, now);
        s.raise_level(*client->group);
        if (lease->overdue && unused) s.leases.forgive(*lease, lease->deadline, now);
        // One that went on for its peers stops when it has submitted what they wait for, whichever slot it is.
        const bool leaves = reason == StopReason::kDeadline && lease->submissions == 0;
        if (leaves) client->left_slot = lease->slot;
        if (tail > s.p.hardware_turn && !lease->is_lingering() && !lease->sliced)
            s.leases.linger(*lease, s.work_beside(*client), now);
        s.leases.stop(*lease, std::clamp<Nanoseconds>(tail, 0, s.longest_tail()), now);
        const bool cut = reason == StopReason::kDeadline || reason == StopReason::kRevoked;
        // It has more to do and will say so any moment. Until then it counts, so that the shares of all do not
        // jump at every hand-over.
        client->group->lingers_until = cut ? now + s.p.quantum_min : now;
        Lease& stopped = *s.leases.newest(client);
        if (!cut && tail <= 0) s.leases.finish(stopped, stopped.end, now);
        if (reason == StopReason::kIdle) s.idle = client;
        s.recount(*client->group);
    }
    s.settle(now);
}

void Arbiter::drained(ClientId id, Nanoseconds at, Nanoseconds now, bool earlier) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    // Without a lease that drains it is no news: a turn that ended idle was over when it stopped.
    while (Lease* lease = client ? s.leases.draining(client) : nullptr) {
        client->group->moved = now;
        s.leases.finish(*lease, s.believed(*lease, std::clamp(at, lease->stopped, now)), now);
        if (earlier) break;
    }
    s.settle(now);
}

void Arbiter::progress(ClientId id, const Progress& progress) {
    if (Client* client = state_->find(id)) client->seen.say(progress);
}

Nanoseconds Arbiter::next_event() const {
    State& s = *state_;
    Nanoseconds next = kNever;
    const auto consider = [&](Nanoseconds at) {
        if (at > s.clock) next = std::min(next, at);
    };
    for (const Lease& lease : s.leases.all()) {
        if (!lease.runs())
            consider(lease.end + s.p.grace);
        else if (!lease.overdue && lease.deadline != kNever)
            consider(lease.deadline + s.grace);
    }
    for (const Group* g : s.everyone) {
        if (g->running || g->waiting > 0) continue;
        consider(g->lingers_until);
        if (g->clients > 0) consider(g->busy_at + s.p.quiet);
        if (g->spec.priority == Priority::kLatency && g->clients > 0) consider(g->busy_at + s.p.latency_quiet);
    }
    if (s.observing()) consider(std::max(s.observe_at, s.clock + 1));
    s.find_waiting();
    if (!s.waiting.empty()) consider(s.policy->next_event(s.waiting, s.clock));
    return next;
}

void Arbiter::tick(Nanoseconds now) {
    state_->settle(state_->begin_told(now));
}

std::vector<Action> Arbiter::take_actions() {
    return std::exchange(state_->actions, {});
}

// Looks without touching: moving the clock here would swallow what is due at this moment.
std::vector<GroupUsage> Arbiter::usage(Nanoseconds now) const {
    const State& s = *state_;
    now = std::max(s.clock, now);
    std::vector<GroupUsage> result;
    for (const auto& group : s.groups) {
        if (!group || group->removed != kNever) continue;
        uint32_t holding = 0;
        Nanoseconds used = group->used - group->before;
        for (const Lease& lease : s.leases.all()) {
            if (lease.group != group.get() || !lease.runs()) continue;
            ++holding;
            used += s.leases.due(lease, now) - lease.charged;
        }
        const double target = group->wanted ? s.policy->target(*group) : 0.0;
        const Nanoseconds throttled = group->throttled + (group->at_maximum ? now - s.clock : 0);
        double speed = -1.0;
        Why why = Why::kShares;
        for (const Client* client : group->members) {
            speed = std::max(speed, client->speed);
            why = std::max(why, client->standing.why);
        }
        result.push_back({group->id, group->spec, target, used, group->clients, group->waiting, holding,
                          s.reason(*group, now), throttled, speed, why});
    }
    return result;
}

uint64_t Arbiter::ignored() const {
    return state_->ignored;
}

Why Arbiter::standing(ClientId client) const {
    const auto found = state_->clients.find(client);
    return found == state_->clients.end() ? Why::kShares : found->second->standing.why;
}

uint64_t Arbiter::standings_changed() const {
    return state_->standings_changed;
}

}  // namespace gemlet::arbiter
