// Decides which clients are on the device, which one leaves for which other and when, and the orders that follow.
#include <algorithm>
#include <utility>

#include "arbiter/residency/residency.hpp"
#include "arbiter/saturating.hpp"

namespace gemlet::arbiter {

namespace {

// So many groups choose at a time who goes for whom, each by a look at all members; others wait for their turn.
constexpr size_t kMostHeads = 16;

}  // namespace

void Residency::settle(Nanoseconds now) {
    stale_ = true;
    next_ = kNever;
    // Most devices never have a limit: they shall not pay for it with each turn.
    limited_ = limited_ || capacity_ != kUnlimited ||
               std::any_of(groups_.begin(), groups_.end(), [](auto& g) { return g.second.resident != kUnlimited; });
    if (!limited_) return;
    for (auto& [id, m] : members_) commit(m);
    refresh();
    drop_what_no_longer_fits(now);
    let_in(now);
    keep_what_fits();
    publish(now);
}

void Residency::refresh() const {
    if (!std::exchange(stale_, false)) return;
    for_all_sums([](Sums& sums) { sums = {}; });
    for (const auto& [id, m] : members_) {
        m.kept = 0;
        const auto group = groups_.find(m.group);
        m.of = group == groups_.end() ? nullptr : &group->second;
        for_sums_of(m, [&, &m = m](Sums& sums) {
            const bool is_pinned = m.of && m.of->pinned;
            ++sums.members;
            sums.fixed += m.fixed;
            sums.movable += m.movable;
            sums.granted += m.granted;
            sums.committed += m.committed;
            sums.largest = std::max(sums.largest, m.granted);
            if (is_pinned) sums.pinned += m.granted;
            if (!m.in) return;
            sums.in += m.movable;
            if (is_pinned) sums.pinned_in += m.movable;
        });
    }
}

Residency::Scopes Residency::scopes_of(const Member& member) const {
    refresh();
    Scopes scopes;
    if (member.of && member.of->resident != kUnlimited) scopes.add({member.of->resident, true, &member.of->sums});
    if (capacity_ != kUnlimited) scopes.add({capacity_, false, &device_});
    return scopes;
}

// All limits that bind somebody.
std::vector<Residency::Scope> Residency::scopes() const {
    refresh();
    std::vector<Scope> all;
    if (capacity_ != kUnlimited && !members_.empty()) all.push_back({capacity_, false, &device_});
    for (const auto& [id, group] : groups_)
        if (group.resident != kUnlimited && group.sums.members > 0)
            all.push_back({group.resident, true, &group.sums});
    return all;
}

bool Residency::pinned(const Member& member) const {
    refresh();
    return member.of && member.of->pinned;
}

// `asks` that is pinned finds room beside all others that are.
uint64_t Residency::room(const Scope& scope, const Member* asks) {
    Total taken = scope.sums->fixed;
    if (asks && asks->of && asks->of->pinned) taken += scope.sums->pinned - asks->granted;
    return left_of(scope.limit, taken);
}

bool Residency::fits(const Member& member, const Leaving& without) const {
    for (const Scope& scope : scopes_of(member)) {
        const Total others = scope.sums->in + scope.sums->kept - (member.in ? member.movable : 0) -
                             (scope.is_group ? without.of_group : without.on_device);
        if (others + member.movable > room(scope)) return false;
    }
    return true;
}

bool Residency::fits_alone(const Member& member) const {
    for (const Scope& scope : scopes_of(member))
        if (member.movable > room(scope)) return false;
    return true;
}

bool Residency::fits_beside_pinned(const Member& member) const {
    for (const Scope& scope : scopes_of(member))
        if (scope.sums->pinned_in + member.movable > room(scope)) return false;
    return true;
}

bool Residency::holds_all(const Scope& scope) {
    return scope.sums->movable <= room(scope);
}

bool Residency::everything_fits() const {
    const auto all = scopes();
    return std::all_of(all.begin(), all.end(), holds_all);
}

void Residency::set_in(Member& member, bool in) {
    if (member.in == in) return;
    const bool is_pinned = pinned(member);
    for_sums_of(member, [&](Sums& sums) {
        for (Total* sum : {&sums.in, is_pinned ? &sums.pinned_in : nullptr})
            if (sum) *sum = in ? *sum + member.movable : *sum - member.movable;
    });
    member.in = in;
}

void Residency::put_out(Member& member, Nanoseconds now) {
    set_in(member, false);
    for_sums_of(member, [&](Sums& sums) { sums.kept -= member.kept; });
    member.kept = member.had = 0;
    member.complete = false;
    member.interrupted = member.active;
    if (member.active && member.queued == kNever) member.queued = now;
}

void Residency::enter(Member& member, Nanoseconds now) {
    set_in(member, true);
    member.queued = kNever;
    member.asked_at = kNever;
    member.ask = false;
    member.turn = ++turn_;
    member.entered = member.epoch = member.idle_since = now;
    member.complete = member.mapped >= member.movable && member.committed >= member.movable;
    member.entry_bytes = minus(member.movable, member.mapped);
    member.at_will = false;
    member.guest = member.movable == 0;
    offer(member, now);
}

// Growth, or a limit that fell: who came last gives way.
void Residency::drop_what_no_longer_fits(Nanoseconds now) {
    const auto all = scopes();
    if (std::all_of(all.begin(), all.end(), [](const Scope& scope) { return scope.sums->in <= room(scope); })) return;
    std::vector<Member*> in;
    for (auto& [id, m] : members_)
        if (m.in) in.push_back(&m);
    std::sort(in.begin(), in.end(), [](const Member* a, const Member* b) { return a->turn > b->turn; });
    for (Member* m : in)
        if (m->movable > 0 && !fits(*m)) put_out(*m, now);
}

double Residency::share_of(const Member& member) const {
    refresh();
    return member.of ? member.of->share : 1.0;
}

Residency::Demand Residency::demand() const {
    Demand all;
    for (const auto& [id, m] : members_) {
        if (!m.active && m.queued == kNever) continue;
        const double share = share_of(m);
        all.shares += share;
        all.largest = std::max(all.largest, share);
        const Scopes scopes = scopes_of(m);
        if (!std::all_of(scopes.begin(), scopes.end(), holds_all)) {
            all.handover = std::max(all.handover, handover_of(m));
            if (share > 0) all.kept = std::max(all.kept, double(m.handover) / share);
        }
        ++all.count;
        all.waiting += !m.in;
    }
    return all;
}

// Expected, in ns.
double Residency::handover_of(const Member& member) const {
    return member.handover > 0 ? double(member.handover)
                               : double(std::max(member.movable, member.had)) / p_.bytes_per_ns;
}

// Long enough for hand-overs to cost little, short enough for every client that waits to have its turn in time: one
// place becomes free with each epoch. But nobody goes sooner than its coming took. The dearest hand-over counts for
// all, or one that comes at little cost would have less of the device than its share; also where no time is left for
// it, as far as all can have as much.
Nanoseconds Residency::epoch_length(const Member& member, const Demand& all) const {
    const double handover = std::max(handover_of(member), all.handover);
    const double share = share_of(member), largest = std::max(share, all.largest);
    const double weight = all.shares > 0 && share > 0 ? share * all.count / all.shares : 1.0;
    const double heaviest = all.shares > 0 && largest > 0 ? largest * all.count / all.shares : 1.0;
    const double cheap = std::max(handover * (1.0 / p_.overhead - 1.0), double(p_.epoch_min));
    const double each = double(p_.max_wait) / std::max(all.waiting, 1.0);
    const double part = weight / std::max(heaviest, 1.0);
    const double length = std::min(cheap * weight, (each - handover) * part);
    const double as_kept = std::min(all.kept * share, (each - handover_of(member)) * part);
    return Nanoseconds(std::max({length, as_kept, double(p_.epoch_min), double(member.handover)}));
}

// When this resident's place may be given to another; it has work of its own or not.
Nanoseconds Residency::may_go_at(const Member& member, const Demand& wanted, Nanoseconds now) const {
    if (member.gone || member.guest || (member.movable == 0 && !keeps(member, now))) return now;
    const Nanoseconds its_time =
        member.entry_bytes == 0 ? member.epoch + epoch_length(member, wanted) : member.entered + p_.stuck;
    const Nanoseconds at = has_room(member) ? std::min(its_time, member.got_on + p_.slow) : its_time;
    if (member.active) return at;
    // Short of two hand-overs its return may be worth waiting for, unless such pauses of its always took longer.
    const bool for_long = member.idles_for > p_.idle + 2 * member.handover;
    return std::min(at, member.idle_since + (for_long ? p_.idle : worth_waiting(member)));
}

// ... to this one. A pinned client that comes back from being idle does not wait for an epoch to end; but the
// client that it sends away has run for at least as long as coming took, or that client would never make progress.
Nanoseconds Residency::gives_way_at(const Member& member, const Member& to, const Demand& wanted,
                                    Nanoseconds now) const {
    const Nanoseconds at = may_go_at(member, wanted, now);
    if (!pinned(to) || pinned(member) || to.interrupted || !member.active || !member.complete) return at;
    return std::min(at, member.epoch + member.handover);
}

std::vector<Residency::Member*> Residency::in_turn(std::vector<std::pair<ClientId, Member*>> queue) const {
    struct Place {
        bool later;
        Nanoseconds queued;
        ClientId id;
        Member* member;
        auto operator<=>(const Place&) const = default;
    };
    std::vector<Place> places;
    places.reserve(queue.size());
    for (const auto& [id, m] : queue) places.push_back({!pinned(*m) || m->interrupted, m->queued, id, m});
    std::sort(places.begin(), places.end());
    std::vector<Member*> sorted;
    sorted.reserve(places.size());
    for (const Place& place : places) sorted.push_back(place.member);
    return sorted;
}

// The longest idle first, then those whose epoch ended first; pinned ones last. None: those that may go now would not
// do. `soonest`: when the next one may.
std::optional<std::vector<Residency::Member*>> Residency::who_goes_for(const Member& m, Nanoseconds now,
                                                                       Nanoseconds& soonest) {
    if (fits(m)) return std::vector<Member*>();
    struct Candidate {
        bool pinned, active;
        Nanoseconds at;
        uint64_t turn;
        ClientId id;
        Member* member;
        auto operator<=>(const Candidate&) const = default;
    };
    std::vector<Candidate> candidates;
    const bool spares_pinned = fits_beside_pinned(m);
    const Demand wanted = demand();
    for (auto& [id, other] : members_) {
        if (!other.in || other.movable + other.kept == 0 || (spares_pinned && pinned(other))) continue;
        const Nanoseconds at = gives_way_at(other, m, wanted, now);
        if (at <= now)
            candidates.push_back({pinned(other), other.active, at, other.turn, id, &other});
        else
            soonest = std::min(soonest, at);
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<Member*> out;
    Leaving leaving;
    for (size_t i = 0; i < candidates.size() && !fits(m, leaving); ++i) {
        out.push_back(candidates[i].member);
        leaving.add(*out.back(), m);
    }
    if (!fits(m, leaving)) return std::nullopt;
    // Not more than need be: the first chosen stay, if the later ones were enough.
    for (size_t i = out.size(); i-- > 0;) {
        Leaving less = leaving;
        less.take_back(*out[i], m);
        if (!fits(m, less)) continue;
        leaving = less;
        out.erase(out.begin() + std::ptrdiff_t(i));
    }
    return out;
}

// One that was stopped while it waited would keep the place and never fill it, and who left for it would wait for as
// long. So it is asked first, by an order that changes nothing. What it answered before its turn counts for nothing.
bool Residency::is_there(Member& member, Nanoseconds now) const {
    const bool answers = !member.ask && member.seen == member.number;
    if (member.asked_at != kNever && !(member.asked_early && answers)) return answers;
    ask(member, now, false);
    return false;
}

void Residency::ask(Member& member, Nanoseconds now, bool early) const {
    member.asked_at = now;
    member.asked_early = early;
    member.ask = true;
}

// Until it answers.
bool Residency::is_passed_by(const Member& member, Nanoseconds now) const {
    return member.asked_at != kNever && member.seen != member.number && now >= member.asked_at + p_.answer;
}

bool Residency::share_a_limit(const Member& a, const Member& b) const {
    refresh();
    return capacity_ != kUnlimited || (a.group == b.group && a.of && a.of->resident != kUnlimited);
}

// One that has nothing is in at any time, and takes room that is free without a turn. A new epoch for it would put
// off those who wait: two that free all they have, one after the other, or programs that come and end, would keep
// them out for ever.
bool Residency::comes_after_another(const Member& member, Nanoseconds now) const {
    return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
        const Member& other = entry.second;
        const bool waits = !other.in && !other.gone && other.queued != kNever && share_a_limit(member, other);
        return waits && (pinned(other) || !pinned(member)) && fits_alone(other) && !is_passed_by(other, now);
    });
}

// What a resident frees in its epoch it may need again in a moment: a program that allocates and frees in each of its
// steps would lose its place with each, to the first that fits into the rest. Also if it frees all that it has.
bool Residency::keeps(const Member& member, Nanoseconds now) const {
    return member.in && member.had > member.movable && now < member.freed_at + worth_waiting(member);
}

void Residency::keep_what_was_freed(Nanoseconds now) {
    std::optional<Demand> wanted;
    for (auto& [id, m] : members_) {
        if (!keeps(m, now)) {
            m.had = 0;
            continue;
        }
        if (!wanted) wanted = demand();
        const Nanoseconds its_time = may_go_at(m, *wanted, now);
        if (its_time <= now) continue;
        m.kept = m.had - m.movable;
        for_sums_of(m, [&, &m = m](Sums& sums) { sums.kept += m.kept; });
        next_ = std::min({next_, m.freed_at + worth_waiting(m), its_time});
    }
}

void Residency::let_in(Nanoseconds now) {
    for (auto& [id, m] : members_)
        if (!m.in && !m.gone && m.movable == 0) enter(m, now);  // it needs no room
    keep_what_was_freed(now);
    const bool all_fit = everything_fits();
    std::vector<std::pair<ClientId, Member*>> queue;
    for (auto& [id, m] : members_) {
        if (!m.in && !m.gone && (m.queued != kNever || all_fit))
            queue.emplace_back(id, &m);
        else
            m.asked_at = kNever;
    }
    // What one has answered says nothing of later.
    const auto forget_answer = [](Member& m) {
        if (m.seen == m.number) m.asked_at = kNever;
    };
    std::vector<Head> heads;
    Total of_heads = 0;
    for (Member* m : in_turn(std::move(queue))) {
        if (!fits_alone(*m)) continue;  // a limit fell, or it had more when it came: it must not stop the others
        if (is_passed_by(*m, now)) continue;
        const bool lacks = !all_fit && m->movable > m->committed;
        const bool too_many = heads.size() >= kMostHeads;
        const auto is_before = [&](const Head& head) { return too_many || is_behind(*m, *head.member, of_heads); };
        if (const auto first = std::find_if(heads.begin(), heads.end(), is_before); first != heads.end()) {
            // A client may pass one that waits only if it will not be in its way: together with it, and with the
            // clients that came in since.
            const auto makes_way = [&](const Head& head) { return !is_before(head) || head.makes_way(*this, *m); };
            if (!fits(*m) || !std::all_of(first, heads.end(), makes_way)) {
                if (!first->hesitates)
                    forget_answer(*m);
                else if (lacks && m->asked_at == kNever)
                    ask(*m, now, true);
                continue;
            }
            if (lacks && !is_there(*m, now)) continue;
            enter(*m, now);
            for (Head& head : heads) head.see(*m);
            continue;
        }
        Nanoseconds soonest = kNever;
        const auto out = who_goes_for(*m, now, soonest);
        const bool waits_for_answer = out && lacks && !is_there(*m, now);
        bool hesitates = false;
        if (waits_for_answer) {
            hesitates = now >= m->asked_at + p_.hesitates;
            soonest = m->asked_at + (hesitates ? p_.answer : p_.hesitates);
        }
        if (!out) forget_answer(*m);
        if (!out || waits_for_answer) {
            Head& head = heads.emplace_back(Head{m, hesitates});
            of_heads += m->movable;
            for (const auto& [id, other] : members_)
                if (other.in) head.see(other);
            next_ = std::min(next_, soonest);
            continue;
        }
        for (Member* other : *out) {
            put_out(*other, now);
            if (other->movable == 0) enter(*other, now);  // it only kept room
        }
        enter(*m, now);
        for (Head& head : heads) head.see(*m);
    }
}

// It is of the other's limited group, or they may want the same room of the device: there is not enough beside what
// is in for it and all that wait before it. Others do not wait for each other: groups may each have a limit of their
// own, and the device room for all of them.
bool Residency::is_behind(const Member& member, const Member& head, Total of_heads) const {
    if (member.group == head.group && head.of && head.of->resident != kUnlimited) return true;
    return capacity_ != kUnlimited &&
           device_.in + device_.kept + of_heads + member.movable > left_of(capacity_, device_.fixed);
}

void Residency::Head::see(const Member& comes) {
    if (comes.entered <= member->queued) return;
    since += comes.movable;
    if (comes.group == member->group) since_of_group += comes.movable;
}

bool Residency::Head::makes_way(const Residency& all, const Member& comes) const {
    for (const Scope& scope : all.scopes_of(*member)) {
        const bool counts = !scope.is_group || comes.group == member->group;
        const Total passed = (scope.is_group ? since_of_group : since) + (counts ? comes.movable : 0);
        if (passed + member->movable > room(scope)) return false;
    }
    return true;
}

// Memory that residents leave free stays with the clients that have it, the next in turn first, because it would
// have to come back.
void Residency::keep_what_fits() {
    for_all_sums([](Sums& sums) { sums.target = sums.in; });
    std::vector<std::pair<ClientId, Member*>> others;
    for (auto& [id, m] : members_) {
        m.target = m.in ? m.movable : 0;
        if (!m.in) others.emplace_back(id, &m);
    }
    for (Member* m : in_turn(std::move(others))) {
        uint64_t keep = std::min(std::min(m->committed, m->movable), m->gone ? m->committed : m->allowed);
        for (const Scope& scope : scopes_of(*m)) keep = std::min(keep, left_of(room(scope), scope.sums->target));
        m->target = keep;
        for_sums_of(*m, [&](Sums& sums) { sums.target += keep; });
    }
}

// Others left for it, so it has to come, whatever it says: each tenth in its time. Of less than all of its room it
// may have no use, for memory moves in whole chunks.
bool Residency::has_room(const Member& m) {
    return m.mapped < m.movable && m.movable <= m.allowed;
}

void Residency::offer(Member& m, Nanoseconds now) {
    m.filled = m.mapped;
    m.tenth = std::max<uint64_t>(minus(m.allowed, m.mapped) / 10, 1);
    m.got_on = now;
}

bool Residency::gets_on(const Member& m, Nanoseconds now) const {
    return now < m.got_on + p_.slow;
}

void Residency::commit(Member& m) {
    const uint64_t least = std::max(m.allowed, m.mapped);
    const bool obeys = m.seen == m.number;
    if (obeys && !m.gone) m.refuted = false;
    m.committed = obeys || m.refuted ? least : std::max(m.committed, least);
    if (obeys && m.number > m.said_at.value_or(UINT32_MAX) && m.mapped <= m.allowed)
        m.said_at.reset();  // it keeps to an order of this daemon
}

// What it was told to give, and has yet to.
uint64_t Residency::coming(const Member& m) {
    return m.seen == m.number ? 0 : minus(m.committed, std::max(m.allowed, m.mapped));
}

// What it holds and lacks, again after a change. `ahead`: what it lacks is its own before others'.
void Residency::count(Member& m, bool ahead) {
    m.ahead = ahead;
    const uint64_t lacks = ahead && m.in ? minus(m.target, m.committed) : 0;
    for_sums_of(m, [&](Sums& sums) {
        sums.committed += m.committed;
        sums.coming += coming(m);
        sums.ahead += lacks;
    });
}

void Residency::discount(const Member& m) {
    const uint64_t lacks = m.ahead && m.in ? minus(m.target, m.committed) : 0;
    for_sums_of(m, [&](Sums& sums) {
        sums.committed -= m.committed;
        sums.coming -= coming(m);
        sums.ahead -= lacks;
    });
}

void Residency::order(ClientId client, Member& m, uint64_t allowed) {
    discount(m);
    m.allowed = allowed;
    ++m.number;
    commit(m);
    count(m, m.ahead);
    orders_.push_back({client, allowed, m.number});
}

void Residency::publish(Nanoseconds now) {
    for_all_sums([](Sums& sums) { sums.committed = sums.coming = sums.ahead = 0; });
    for (auto& [id, m] : members_) count(m, false);
    for (auto& [id, m] : members_) {
        const bool asks = std::exchange(m.ask, false);
        if (m.target < m.allowed || asks) order(id, m, std::min(m.target, m.allowed));
    }
    using Rising = std::pair<ClientId, Member*>;
    std::vector<Rising> rising, lenders;
    for (auto& [id, m] : members_) {
        if (m.target <= m.allowed) continue;
        rising.emplace_back(id, &m);
        if (m.in && m.allowed > m.mapped) lenders.emplace_back(id, &m);
    }
    // The client that lacks least comes first: it runs, whereas the same bytes would only shorten another one's
    // wait.
    std::sort(rising.begin(), rising.end(), [](const Rising& a, const Rising& b) {
        const Member &x = *a.second, &y = *b.second;
        const uint64_t x_lacks = x.target - x.allowed, y_lacks = y.target - y.allowed;
        return x_lacks != y_lacks ? x_lacks < y_lacks : x.turn < y.turn;
    });
    for (const auto& [id, m] : rising) {
        uint64_t allowed = m->target;
        for (const Scope& scope : scopes_of(*m)) {
            // What is free is theirs first that come before.
            const uint64_t free = left_of(room(scope), scope.sums->ahead + scope.sums->committed - m->committed);
            // One that cannot run yet lends what it has not filled: who left for it may be long in leaving.
            uint64_t lack = m->in ? left_of(minus(m->target, free), scope.sums->coming - coming(*m)) : 0;
            for (const auto& [other_id, other] : lenders) {
                if (lack == 0) break;
                if (other == m || (scope.is_group && other->group != m->group)) continue;
                if (other->target <= other->allowed) continue;
                if (other->target - other->allowed <= m->target - m->allowed) continue;
                const uint64_t lent = std::min(lack, minus(other->allowed, other->mapped));
                if (lent > 0) order(other_id, *other, other->allowed - lent);
                lack -= lent;
            }
            allowed = std::min(allowed, free);
        }
        if (allowed > m->allowed) {
            order(id, *m, allowed);
            if (!m->at_will) offer(*m, now);
        }
        discount(*m);
        count(*m, true);
    }
    // A place becomes free when somebody's epoch ends, also if the queue was looked at before that could be known.
    bool waits = false;
    for (const auto& [id, m] : members_) waits = waits || (m.queued != kNever && !m.in && !m.gone);
    if (!waits) next_ = kNever;
}

std::vector<Order> Residency::take_orders() {
    return std::exchange(orders_, {});
}

}  // namespace gemlet::arbiter
