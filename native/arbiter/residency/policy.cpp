// Decides which clients are on the device, which one leaves for which other and when, and the orders that follow.
#include <algorithm>
#include <utility>

#include "arbiter/residency/residency.hpp"
#include "arbiter/saturating.hpp"

namespace gemlet::arbiter {

void Residency::settle(Nanoseconds now) {
    next_ = kNever;
    // Most devices never have a limit: they shall not pay for it with each turn.
    limited_ = limited_ || capacity_ != kUnlimited ||
               std::any_of(groups_.begin(), groups_.end(), [](auto& g) { return g.second.resident != kUnlimited; });
    if (!limited_) return;
    for (auto& [id, m] : members_) commit(m);
    drop_what_no_longer_fits(now);
    let_in(now);
    keep_what_fits();
    publish();
}

std::vector<Residency::Scope> Residency::scopes_of(const Member& member) const {
    std::vector<Scope> scopes;
    if (const auto group = groups_.find(member.group); group != groups_.end() && group->second.resident != kUnlimited)
        scopes.push_back({group->second.resident, member.group});
    if (capacity_ != kUnlimited) scopes.push_back({capacity_, std::nullopt});
    return scopes;
}

// All limits that bind somebody.
std::vector<Residency::Scope> Residency::scopes() const {
    std::vector<Scope> all;
    if (capacity_ != kUnlimited && !members_.empty()) all.push_back({capacity_, std::nullopt});
    for (const auto& [id, group] : groups_) {
        const bool empty =
            std::none_of(members_.begin(), members_.end(), [&](auto& entry) { return entry.second.group == id; });
        if (group.resident != kUnlimited && !empty) all.push_back({group.resident, id});
    }
    return all;
}

bool Residency::pinned(const Member& member) const {
    const auto group = groups_.find(member.group);
    return group != groups_.end() && group->second.pinned;
}

// `asks` that is pinned finds room beside all others that are.
uint64_t Residency::room(const Scope& scope, const Member* asks) const {
    uint64_t fixed = 0;
    for (const auto& [id, m] : members_) {
        if (!scope.has(m)) continue;
        fixed = plus(fixed, m.fixed);
        if (asks && &m != asks && pinned(*asks) && pinned(m)) fixed = plus(fixed, m.granted);
    }
    return minus(scope.limit, fixed);
}

// With everybody in but those of `without`, and `extra` bytes more.
bool Residency::fits(const Member& member, const std::vector<ClientId>& without, uint64_t extra) const {
    for (const Scope& scope : scopes_of(member)) {
        uint64_t sum = plus(member.movable, extra);
        for (const auto& [id, m] : members_) {
            if (&m == &member || !m.in || !scope.has(m)) continue;
            if (std::find(without.begin(), without.end(), id) == without.end()) sum = plus(sum, m.movable);
        }
        if (sum > room(scope)) return false;
    }
    return true;
}

bool Residency::everything_fits() const {
    const auto all = scopes();
    return std::all_of(all.begin(), all.end(), [&](const Scope& scope) {
        uint64_t sum = 0;
        for (const auto& [id, m] : members_)
            if (scope.has(m)) sum = plus(sum, m.movable);
        return sum <= room(scope);
    });
}

void Residency::put_out(Member& member, Nanoseconds now) {
    member.in = member.complete = false;
    member.interrupted = member.active;
    if (member.active && member.queued == kNever) member.queued = now;
}

void Residency::enter(Member& member, Nanoseconds now) {
    member.in = true;
    member.queued = kNever;
    member.turn = ++turn_;
    member.entered = member.epoch = member.idle_since = now;
    member.complete = member.mapped >= member.movable && member.committed >= member.movable;
    member.entry_bytes = minus(member.movable, member.mapped);
}

// Growth, or a limit that fell: who came last gives way.
void Residency::drop_what_no_longer_fits(Nanoseconds now) {
    std::vector<Member*> in;
    for (auto& [id, m] : members_)
        if (m.in) in.push_back(&m);
    std::sort(in.begin(), in.end(), [](const Member* a, const Member* b) { return a->turn > b->turn; });
    for (Member* m : in)
        if (m->movable > 0 && !fits(*m, {})) put_out(*m, now);
}

double Residency::share_of(const Member& member) const {
    const auto group = groups_.find(member.group);
    return group == groups_.end() ? 1.0 : group->second.share;
}

// Long enough for hand-overs to cost little, short enough for every client that waits to have its turn in time: one
// place becomes free with each epoch. But nobody goes sooner than its coming took.
Nanoseconds Residency::epoch_length(const Member& member) const {
    double handover = double(member.handover);
    if (handover == 0) handover = double(member.movable) / p_.bytes_per_ns;
    double sum = 0, count = 0, waiting = 0, largest = share_of(member);
    for (const auto& [id, m] : members_) {
        if (!m.active && m.queued == kNever) continue;
        sum += share_of(m);
        largest = std::max(largest, share_of(m));
        ++count;
        waiting += !m.in;
    }
    const double share = share_of(member);
    const double weight = sum > 0 && share > 0 ? share * count / sum : 1.0;
    const double heaviest = sum > 0 && largest > 0 ? largest * count / sum : 1.0;
    const double cheap = std::max(handover * (1.0 / p_.overhead - 1.0), double(p_.epoch_min));
    const double in_time = double(p_.max_wait) / std::max(waiting, 1.0) - handover;
    const double length = std::min(cheap, in_time / std::max(heaviest, 1.0)) * weight;
    return Nanoseconds(std::max({length, double(p_.epoch_min), double(member.handover)}));
}

// When this resident's place may be given to another; it has work of its own or not.
Nanoseconds Residency::may_go_at(const Member& member, Nanoseconds now) const {
    if (member.gone || member.movable == 0) return now;
    // Short of two hand-overs its return may be worth waiting for, unless such pauses of its always took longer.
    if (!member.active) {
        const bool for_long = member.idles_for > p_.idle + 2 * member.handover;
        return member.idle_since + (for_long ? p_.idle : std::max(p_.idle, 2 * member.handover));
    }
    if (!member.complete) return member.entered + p_.stuck;
    return member.epoch + epoch_length(member);
}

// ... to this one. A pinned client that comes back from being idle does not wait for an epoch to end; but the
// client that it sends away has run for at least as long as coming took, or that client would never make progress.
Nanoseconds Residency::gives_way_at(const Member& member, const Member& to, Nanoseconds now) const {
    const Nanoseconds at = may_go_at(member, now);
    if (!pinned(to) || pinned(member) || to.interrupted || !member.active || !member.complete) return at;
    return std::min(at, member.epoch + member.handover);
}

void Residency::sort_queue(std::vector<ClientId>& queue) const {
    std::sort(queue.begin(), queue.end(), [&](ClientId a, ClientId b) {
        const Member &x = members_.at(a), &y = members_.at(b);
        const bool x_first = pinned(x) && !x.interrupted, y_first = pinned(y) && !y.interrupted;
        if (x_first != y_first) return x_first;
        return x.queued != y.queued ? x.queued < y.queued : a < b;
    });
}

void Residency::let_in(Nanoseconds now) {
    std::vector<ClientId> queue, everybody;
    for (auto& [id, m] : members_) {
        everybody.push_back(id);
        if (!m.in && !m.gone && m.movable == 0) enter(m, now);  // it needs no room
    }
    const bool all_fit = everything_fits();
    for (auto& [id, m] : members_)
        if (!m.in && !m.gone && (m.queued != kNever || all_fit)) queue.push_back(id);
    sort_queue(queue);
    const Member* head = nullptr;  // the first that has to wait
    for (ClientId id : queue) {
        Member& m = members_.at(id);
        if (!fits(m, everybody)) continue;  // a limit fell, or it had more when it came: it must not stop the others
        if (head) {
            // A client may pass one that waits only if it will not be in its way: together with it, and with the
            // clients that came in since.
            uint64_t since = m.movable;
            for (const auto& [other_id, other] : members_)
                if (other.in && other.entered > head->queued) since = plus(since, other.movable);
            if (fits(m, {}) && fits(*head, everybody, since)) enter(m, now);
            continue;
        }
        // The clients that could make room: the longest idle first, then those whose epoch ended first; pinned
        // ones last.
        struct Candidate {
            bool pinned, active;
            Nanoseconds at;
            uint64_t turn;
            ClientId id;
            auto operator<=>(const Candidate&) const = default;
        };
        std::vector<Candidate> candidates;
        Nanoseconds soonest = kNever;
        std::vector<ClientId> unpinned;
        for (const auto& [other_id, other] : members_)
            if (!pinned(other)) unpinned.push_back(other_id);
        const bool spares_pinned = fits(m, unpinned);
        for (const auto& [other_id, other] : members_) {
            if (!other.in || other.movable == 0 || (spares_pinned && pinned(other))) continue;
            const Nanoseconds at = gives_way_at(other, m, now);
            if (at <= now)
                candidates.push_back({pinned(other), other.active, at, other.turn, other_id});
            else
                soonest = std::min(soonest, at);
        }
        std::sort(candidates.begin(), candidates.end());
        std::vector<ClientId> out;
        for (size_t i = 0; i < candidates.size() && !fits(m, out); ++i) out.push_back(candidates[i].id);
        if (!fits(m, out)) {
            head = &m;
            next_ = std::min(next_, soonest);
            continue;
        }
        // Not more than need be: the first chosen stay, if the later ones were enough.
        for (size_t i = out.size(); i-- > 0;) {
            std::vector<ClientId> less = out;
            less.erase(less.begin() + std::ptrdiff_t(i));
            if (fits(m, less)) out.swap(less);
        }
        for (ClientId other : out) put_out(members_.at(other), now);
        enter(m, now);
    }
}

// Memory that residents leave free stays with the clients that have it, the next in turn first, because it would
// have to come back.
void Residency::keep_what_fits() {
    std::vector<ClientId> others;
    for (auto& [id, m] : members_) {
        m.target = m.in ? m.movable : 0;
        if (!m.in) others.push_back(id);
    }
    sort_queue(others);
    for (ClientId id : others) {
        Member& m = members_.at(id);
        uint64_t keep = std::min(std::min(m.committed, m.movable), m.gone ? m.committed : m.allowed);
        for (const Scope& scope : scopes_of(m)) {
            uint64_t taken = 0;
            for (const auto& [other_id, other] : members_)
                if (scope.has(other)) taken = plus(taken, other.target);
            keep = std::min(keep, minus(room(scope), taken));
        }
        m.target = keep;
    }
}

void Residency::commit(Member& m) {
    const uint64_t least = std::max(m.allowed, m.mapped);
    const bool obeys = m.seen == m.number;
    if (obeys && !m.gone) m.refuted = false;
    m.committed = obeys || m.refuted ? least : std::max(m.committed, least);
    if (obeys && m.number > m.said_at.value_or(UINT32_MAX) && m.mapped <= m.allowed)
        m.said_at.reset();  // it keeps to an order of this daemon
}

void Residency::publish() {
    const auto order = [&](ClientId id, Member& m, uint64_t allowed) {
        m.allowed = allowed;
        ++m.number;
        commit(m);
        orders_.push_back({id, allowed, m.number});
    };
    for (auto& [id, m] : members_)
        if (m.target < m.allowed) order(id, m, m.target);
    std::vector<ClientId> rising;
    for (auto& [id, m] : members_)
        if (m.target > m.allowed) rising.push_back(id);
    // The client that lacks least comes first: it runs, whereas the same bytes would only shorten another one's
    // wait.
    std::sort(rising.begin(), rising.end(), [&](ClientId a, ClientId b) {
        const Member &x = members_.at(a), &y = members_.at(b);
        const uint64_t x_lacks = x.target - x.allowed, y_lacks = y.target - y.allowed;
        return x_lacks != y_lacks ? x_lacks < y_lacks : x.turn < y.turn;
    });
    for (size_t i = 0; i < rising.size(); ++i) {
        const ClientId id = rising[i];
        Member& m = members_.at(id);
        uint64_t allowed = m.target;
        for (const Scope& scope : scopes_of(m)) {
            uint64_t others = 0, coming = 0;
            for (size_t before = 0; before < i; ++before) {  // what is free is theirs first
                const Member& first = members_.at(rising[before]);
                if (first.in && scope.has(first)) others = plus(others, minus(first.target, first.committed));
            }
            for (const auto& [other_id, other] : members_) {
                if (other_id == id || !scope.has(other)) continue;
                others = plus(others, other.committed);
                if (other.seen != other.number)
                    coming = plus(coming, minus(other.committed, std::max(other.allowed, other.mapped)));
            }
            const uint64_t free = minus(room(scope), others);
            // One that cannot run yet lends what it has not filled: who left for it may be long in leaving.
            uint64_t lack = m.in ? minus(minus(m.target, free), coming) : 0;
            for (auto& [other_id, other] : members_) {
                if (other_id == id || !scope.has(other) || !other.in || other.target <= other.allowed) continue;
                if (other.target - other.allowed <= m.target - m.allowed) continue;
                const uint64_t lent = std::min(lack, minus(other.allowed, other.mapped));
                if (lent > 0) order(other_id, other, other.allowed - lent);
                lack -= lent;
            }
            allowed = std::min(allowed, free);
        }
        if (allowed > m.allowed) order(id, m, allowed);
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
