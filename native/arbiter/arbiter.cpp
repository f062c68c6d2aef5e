#include "arbiter/arbiter.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "arbiter/arbiter_state.hpp"

namespace gemlet::arbiter {
namespace {

// A holder is told of a new deadline only if it moved by more than this; the same moment computed twice differs by
// less.
constexpr Nanoseconds kNoticeable = 50'000;
// How late the news may be that a client was faster than the order to take its parked token away.
constexpr Nanoseconds kTakeRace = 1'000'000;

void check(const GroupSpec& spec) {
    const auto refuse = [&](const char* why) { throw std::invalid_argument("group '" + spec.name + "': " + why); };
    if (!(spec.min >= 0.0 && spec.min <= 1.0)) refuse("min must be between 0 and 1");
    if (!(spec.max >= 0.0 && spec.max <= 1.0)) refuse("max must be between 0 and 1");
    if (spec.min > spec.max) refuse("min is above max");
    if (!(spec.weight > 0.0 && std::isfinite(spec.weight))) refuse("weight must be above 0");
    if (!(spec.sm > 0.0 && spec.sm <= 1.0)) refuse("sm must be above 0 and at most 1");
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
    if (p.pair_trial <= 0 || p.pair_turn <= 0 || p.pair_again <= 0 || p.pair_refresh <= 0 || !(p.pair_gain > 0.0))
        throw std::invalid_argument("pair_trial, pair_turn, pair_again, pair_refresh, pair_gain: must be above 0");
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
    holds.charge(clock);
    expire(clock);
    return clock;
}

void Arbiter::State::settle(Nanoseconds now) {
    update_demand(now);
    grant_while_possible(now);
    update_terms(now);
    park_or_not(now);
    for (const auto& group : groups) {
        if (group) group->at_maximum = group->waiting > 0 && !group->running && policy->at_maximum(*group, now);
    }
}

// Holders that do not stop no longer keep others waiting; drains that nobody reports end as estimated.
void Arbiter::State::expire(Nanoseconds now) {
    auto& all = holds.all();
    for (size_t i = 0; i < all.size();) {
        Hold& hold = all[i];
        if (!hold.runs() && now - hold.stopped >= p.debt_max) {
            holds.finish(hold, hold.end, now);
            continue;
        }
        if (hold.runs() && hold.company && !hold.measuring && now >= hold.together_since) {
            hold.measuring = true;
            hold.together_since = now;
            hold.together_work = hold.client->work;
        }
        if (hold.occupies() && hold.deadline != kNever && now - hold.deadline >= grace) {
            holds.leave(hold, now);  // and pays for all of what it takes
            hold.overdue = true;
            recount(static_cast<Members&>(*hold.group));
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

void Arbiter::State::grant_while_possible(Nanoseconds now) {
    for (;;) {
        find_waiting();
        if (waiting.empty()) return;
        const Group* next = policy->pick(waiting, now);
        if (!next) return;
        const double free = kFull - holds.occupied();
        Nanoseconds latest = kNever;
        if (sm_of_next(*next) > free) {
            if (const Group* other = untried(*next); other && grant_beside(*groups[other->slot], now)) continue;
            if (grant_beside(*groups[next->slot], now)) continue;
            // The next one does not fit yet. A narrower one may go before it if that delays nobody: it must be gone
            // when the present holders are.
            update_terms(now);
            latest = now;
            for (const Hold& hold : holds.all()) {
                if (hold.occupies()) latest = std::max(latest, hold.deadline);
            }
            if (latest - now < p.quantum_min) return;
            fitting.clear();
            for (const Group* g : waiting) {
                if (sm_of_next(*g) <= free) fitting.push_back(g);
            }
            if (fitting.empty()) return;
            next = policy->pick(fitting, now);
            if (!next) return;
        }
        grant(*groups[next->slot], latest, now);
    }
}

void Arbiter::State::grant(Members& group, Nanoseconds latest, Nanoseconds now) {
    Client& client = *next_of(group);
    client.waiting = false;
    unpark(client);
    Hold& hold = hold_for(client, now);
    hold.latest = latest;
    make_room(hold, now);
}

Hold& Arbiter::State::hold_for(Client& client, Nanoseconds now) {
    Hold& hold = holds.start(&client, client.group, now);
    client.unparked_for = 0;
    recount(*client.group);
    policy->granted(hold.turn(), now);
    return hold;
}

void Arbiter::State::update_terms(Nanoseconds now) {
    for (Hold& hold : holds.all()) {
        if (hold.occupies()) update_terms(hold, now);
    }
}

void Arbiter::State::update_terms(Hold& hold, Nanoseconds now) {
    const bool known = hold.told == Hold::Told::kTerms || hold.told == Hold::Told::kRevoked;
    if (known && now >= hold.deadline) return;  // it is stopping already
    contenders.clear();
    for (const Group* g : everyone) {
        const bool same = g == hold.group;
        if (same ? g->waiting > 0 : !g->running && (g->waiting > 0 || now < g->lingers_until))
            contenders.push_back(g);
    }
    for (const Hold& other : holds.all()) {  // who took a parked token meanwhile, and whom it must not interrupt
        if (!other.occupies() || other.group == hold.group || (other.company && other.company == hold.company))
            continue;
        const bool goes_first = other.serial < hold.serial && policy->may_interrupt(*hold.group, *other.group, now);
        if (!goes_first && !Holds::fit(other, hold)) contenders.push_back(other.group);
    }
    Turn turn = hold.turn();
    turn.part = holds.part(hold);
    Terms terms = policy->terms(turn, contenders, now);
    terms.deadline = std::min(terms.deadline, hold.latest);
    const Nanoseconds window = window_for(hold, terms.deadline);
    const bool beside = hold.company != 0, patient = beside || pairs.curious(hold.group->id, now);
    const bool moved = terms.deadline == kNever || hold.deadline == kNever
                           ? terms.deadline != hold.deadline
                           : std::abs(terms.deadline - hold.deadline) > kNoticeable || terms.deadline <= now;
    if (known && !moved && terms.contended == hold.contended && window == hold.window && beside == hold.told_beside &&
        patient == hold.patient)
        return;
    Action::Kind kind = Action::Kind::kUpdate;
    if (hold.told == Hold::Told::kNothing)
        kind = Action::Kind::kGrant;
    else if (terms.deadline <= now)
        kind = Action::Kind::kRevoke;
    hold.deadline = kind == Action::Kind::kRevoke ? now : terms.deadline;
    hold.window = window;
    hold.contended = terms.contended;
    hold.told_beside = beside;
    hold.patient = patient;
    hold.told = kind == Action::Kind::kRevoke ? Hold::Told::kRevoked : Hold::Told::kTerms;
    actions.push_back({kind, hold.client->id, hold.deadline, hold.window, hold.contended, beside, patient});
}

// The next holder's first work may arrive while this one's tail still runs, just as the hardware's slice ends: then
// the hardware runs the next one for a whole slice before the tail goes on. A drain late by about that much was not
// the tail's time but the next one's.
Nanoseconds Arbiter::State::believed(const Hold& hold, Nanoseconds drained) const {
    const Nanoseconds late = drained - hold.end, off = std::abs(late - p.hardware_turn);
    const bool sliced = off < p.hardware_turn / 3 && holds.followed(hold);
    return sliced ? std::min(drained, std::max(hold.end, drained - p.hardware_turn)) : drained;
}

// --- look-ups ----------------------------------------------------------------------------------------------------

Nanoseconds Arbiter::State::window_for(const Hold& hold, Nanoseconds deadline) {
    const auto& group = static_cast<const Members&>(*hold.group);
    bool quiet = deadline == kNever && group.clients < 2;
    for (const Group* g : everyone) {
        if (g == &group || g->clients == 0) continue;
        const bool comes = g->spec.priority == Priority::kLatency && g->spec.max > 0.0 && expects_requests(*g);
        if (!comes && !quiet) continue;
        const Members& other = *groups[g->slot];
        if (comes ? joins(other, hold) : goes_with(other, group)) continue;
        if (comes) return p.window_latency;
        quiet = quiet && !g->running && g->waiting == 0 && clock >= g->busy_at + p.quiet;
    }
    return quiet ? p.window_alone : p.window_shared;
}

void Arbiter::State::find_waiting() {
    waiting.clear();
    for (const Group* g : everyone) {
        if (g->waiting > 0 && !g->running) waiting.push_back(g);
    }
}

void Arbiter::State::recount(Members& group) {
    if (group.running || group.waiting > 0) group.busy_at = clock;
    group.running = false;
    group.sm = group.members.empty() ? 1.0 : 0.0;
    for (const Client* client : group.members) group.sm = std::max(group.sm, client->sm);
    for (const Hold& hold : holds.all()) group.running |= hold.group == &group && hold.occupies();
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

Client* Arbiter::State::next_of(Members& group) const {
    Client* best = nullptr;
    const bool by_arrival = policy->by_arrival();
    for (Client* client : group.members) {
        if (!client->waiting) continue;
        const bool less = best && client->used < best->used, same = best && client->used == best->used;
        if (!best || (by_arrival ? client->since < best->since : less || (same && client->since < best->since))) {
            best = client;
        }
    }
    return best;
}

Client* Arbiter::State::find(ClientId id) {
    const auto found = clients.find(id);
    if (found != clients.end()) return found->second.get();
    ++ignored;
    return nullptr;
}

Members* Arbiter::State::find_group(GroupId id) {
    for (const auto& group : groups) {
        if (group && group->id == id) return group.get();
    }
    return nullptr;
}

std::string Arbiter::State::reason(const Members& group, Nanoseconds now) const {
    bool late = false;
    for (const Hold& hold : holds.all()) late |= hold.group == &group && hold.runs() && hold.overdue;
    if (group.running) return "runs";
    if (late) return "was told to stop and still runs";
    if (group.waiting == 0) {
        for (const Client* client : parked) {
            if (client->group == &group) return "idle: may run at once, nobody else waits";
        }
        return group.clients ? "idle" : "no clients";
    }
    if (std::string why = policy->blocked(group, clock); !why.empty()) return why;
    for (const Hold& hold : holds.all()) {
        if (!hold.occupies()) continue;
        const std::string holder = "waits: '" + hold.group->spec.name + "' ";
        char text[64] = "holds the token";
        const double left = static_cast<double>(hold.deadline - now) / 1e6;
        if (hold.deadline != kNever && left >= 0)
            std::snprintf(text, sizeof text, "holds the token for %.0f ms more", std::ceil(left));
        if (hold.deadline != kNever && left < 0) std::snprintf(text, sizeof text, "is %.1f ms late to stop", -left);
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
    for (const auto& group : s.groups) {
        if (!group || group->spec.name != spec.name) continue;
        const GroupSpec before = std::exchange(group->spec, spec);
        s.policy->changed(*group, now);
        s.keep_rights(*group, now);
        s.keep_partner(*group, before, now);
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
    s.holds.forget(group);
    s.pairs.forget(id);
    std::erase(s.everyone, group);
    s.groups[group->slot].reset();
    s.demand_changed = true;
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
    auto client =
        std::make_unique<Client>(Client{.id = id, .group = group, .mps = mps, .sm = mps ? group->spec.sm : 1.0});
    group->members.push_back(client.get());
    group->busy_at = now;  // its first request is near
    s.clients.emplace(id, std::move(client));
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
    while (Hold* hold = s.holds.running(client)) {
        s.measure(*hold, StopReason::kExit, now);
        s.policy->stopped(hold->turn(), StopReason::kExit, now);
        s.holds.stop(*hold, 0, now);
        s.holds.finish(*s.holds.newest(client), now, now);
    }
    while (Hold* hold = s.holds.draining(client)) s.holds.finish(*hold, std::min(hold->end, now), now);
    s.unpark(*client);
    std::erase(group.members, client);
    s.clients.erase(id);
    s.recount(group);
    s.client_count_changed();
    s.settle(now);
}

void Arbiter::want(ClientId id, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    if (client && (client->waiting || s.holds.running(client))) {
        ++s.ignored;
    } else if (client) {
        // Time away is not saved up: it starts level with the least used of those who are there.
        Nanoseconds least = kNever;
        for (const Client* other : client->group->members) {
            if (other->waiting || s.holds.running(other)) least = std::min(least, other->used);
        }
        if (least != kNever) client->used = std::max(client->used, least);
        client->waiting = true;
        s.unpark(*client);
        client->unparked_for = 0;
        client->since = now;
        s.recount(*client->group);
    }
    s.settle(now);
}

bool Arbiter::withdraw(ClientId id, Nanoseconds now) {
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
        auto& all = s.holds.all();
        while (!all.empty() && all.back().serial >= client->unparked_for && all.back().occupies() &&
               s.holds.occupied() + client->sm > kFull)
            s.take_back(all.back(), now);
    }
    Hold& hold = s.hold_for(*client, now);
    hold.told = Hold::Told::kTook;
    s.join(hold, now);
    s.make_room(hold, now);
    s.settle(now);
}

void Arbiter::stopped(ClientId id, StopReason reason, Nanoseconds tail, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    Hold* hold = client ? s.holds.running(client) : nullptr;
    if (client && !hold) ++s.ignored;
    if (hold) {
        s.demand_changed = true;
        s.measure(*hold, reason, now);
        s.policy->stopped(hold->turn(), reason, now);
        s.holds.stop(*hold, std::clamp<Nanoseconds>(tail, 0, s.longest_tail()), now);
        const bool cut = reason == StopReason::kDeadline || reason == StopReason::kRevoked;
        // It has more to do and will say so any moment. Until then it counts, so that the shares of all do not
        // jump at every hand-over.
        client->group->lingers_until = cut ? now + s.p.quantum_min : now;
        if (!cut && tail <= 0) s.holds.finish(*s.holds.newest(client), now, now);
        if (reason == StopReason::kIdle) s.idle = client;
        s.recount(*client->group);
    }
    s.settle(now);
}

void Arbiter::drained(ClientId id, Nanoseconds at, Nanoseconds now) {
    State& s = *state_;
    now = s.begin(now);
    Client* client = s.find(id);
    // Without a hold that drains it is no news: a turn that ended idle was over when it stopped.
    Hold* hold = client ? s.holds.draining(client) : nullptr;
    if (hold) s.holds.finish(*hold, s.believed(*hold, std::clamp(at, hold->stopped, now)), now);
    s.settle(now);
}

void Arbiter::progress(ClientId id, Nanoseconds work, Looks looks) {
    Client* client = state_->find(id);
    if (!client) return;
    client->work = std::max(client->work, work);
    client->looks = {std::max(client->looks.all, looks.all), std::max(client->looks.dry, looks.dry)};
}

Nanoseconds Arbiter::next_event() const {
    State& s = *state_;
    Nanoseconds next = kNever;
    const auto consider = [&](Nanoseconds at) {
        if (at > s.clock) next = std::min(next, at);
    };
    for (const Hold& hold : s.holds.all()) {
        if (!hold.runs())
            consider(hold.stopped + s.p.grace);
        else if (!hold.overdue && hold.deadline != kNever)
            consider(hold.deadline + s.grace);
        if (hold.runs() && hold.company && !hold.measuring) consider(hold.together_since);
    }
    for (const Group* g : s.everyone) {
        if (g->running || g->waiting > 0) continue;
        consider(g->lingers_until);
        if (g->clients > 0) consider(g->busy_at + s.p.quiet);
        if (g->spec.priority == Priority::kLatency && g->clients > 0) consider(g->busy_at + s.p.latency_quiet);
    }
    s.find_waiting();
    if (!s.waiting.empty()) consider(s.policy->next_event(s.waiting, s.clock));
    return next;
}

void Arbiter::tick(Nanoseconds now) {
    state_->settle(state_->begin(now));
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
        if (!group) continue;
        uint32_t holding = 0;
        Nanoseconds used = group->used;
        for (const Hold& hold : s.holds.all()) {
            if (hold.group != group.get() || !hold.runs()) continue;
            ++holding;
            used += s.holds.due(hold, now) - hold.charged;
        }
        const double target = group->wanted ? s.policy->target(*group) : 0.0;
        const Nanoseconds throttled = group->throttled + (group->at_maximum ? now - s.clock : 0);
        result.push_back({group->id, group->spec, target, used, group->clients, group->waiting, holding,
                          s.reason(*group, now), throttled});
    }
    return result;
}

std::vector<PairUsage> Arbiter::pairs() const {
    return state_->pairs.view();
}

uint64_t Arbiter::ignored() const {
    return state_->ignored;
}

}  // namespace gemlet::arbiter
