// What happens to clients and limits; each time the policy settles anew (residency/policy.cpp).
#include <algorithm>

#include "arbiter/residency/residency.hpp"
#include "arbiter/saturating.hpp"

namespace gemlet::arbiter {

void Residency::set_capacity(uint64_t bytes, Nanoseconds now) {
    capacity_ = bytes;
    settle(now);
}

void Residency::set_group(GroupId group, uint64_t resident, double share, Nanoseconds now, bool pinned) {
    groups_[group] = {resident, share, pinned};
    settle(now);
}

void Residency::remove_group(GroupId group) {
    groups_.erase(group);
    stale_ = true;
}

void Residency::add(ClientId client, GroupId group, Nanoseconds now) {
    Member m;
    m.group = group;
    m.in = m.complete = m.guest = true;  // of nothing
    m.turn = ++turn_;
    m.entered = m.epoch = m.idle_since = now;
    members_[client] = m;
    settle(now);
}

void Residency::remove(ClientId client, Nanoseconds now) {
    members_.erase(client);
    settle(now);
}

void Residency::leave(ClientId client, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end()) return;
    found->second.gone = true;
    found->second.active = false;
    found->second.queued = kNever;
    settle(now);
}

Refusal Residency::admit(ClientId client, uint64_t bytes, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end()) return Refusal::kNone;
    Member& m = found->second;
    m.at_will = m.at_will || has_room(m);
    if (bytes <= m.movable) {
        m.granted = std::min(m.granted, bytes);
        const bool anew = m.movable >= m.had || now >= m.freed_at + worth_waiting(m);
        if (bytes < m.movable && m.entry_bytes == 0 && anew) {
            m.had = m.movable;
            m.freed_at = now;
        }
    } else {
        for (const Scope& scope : scopes_of(m))
            if (bytes > room(scope, &m)) return scope.is_group ? Refusal::kResident : Refusal::kCapacity;
        uint64_t promised = 0;
        for (const auto& [id, other] : members_) promised = plus(promised, host_of(other, &m, bytes));
        if (promised > host_) return Refusal::kHost;
        m.turn = ++turn_;
        const bool comes = m.movable == 0 && !keeps(m, now);
        m.movable = m.granted = bytes;
        stale_ = true;
        if (m.in && comes && !comes_after_another(m, now)) {
            m.entered = m.epoch = now;
            m.guest = false;
        }
        if (m.in && !fits(m)) put_out(m, now);  // it is the one that waits for its growth
        if (!m.in && m.queued == kNever) m.queued = now;
    }
    m.movable = bytes;
    settle(now);
    return Refusal::kNone;
}

void Residency::adopt(ClientId client, uint64_t bytes, uint64_t mapped, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end()) return;
    Member& m = found->second;
    m.movable = bytes;
    m.granted = std::min(bytes, may_be_granted(m));
    stale_ = true;
    const uint64_t promised = host_promised();
    m.granted -= std::min(m.granted, promised - std::min(promised, host_));
    const bool new_here = m.number == 0;  // else it may have been allowed more since it said so
    m.mapped = std::min(mapped, bytes);
    m.committed = std::min(bytes, new_here ? m.mapped : std::max(m.committed, m.mapped));
    if (new_here) m.allowed = m.committed;
    m.complete = m.mapped == m.movable;
    if (new_here && m.in) {
        m.entered = m.epoch = now;
        m.guest = false;
        m.entry_bytes = minus(m.movable, m.mapped);
    }
    offer(m, now);
    m.said_at = ++m.number;
    orders_.push_back({client, m.allowed, m.number});  // also if it is never changed: it waits for a first one
    settle(now);
}

void Residency::expect(ClientId client, GroupId group, uint64_t fixed, uint64_t movable, uint64_t mapped,
                       Nanoseconds now) {
    Member& m = members_[client] = {};
    m.group = group;
    m.gone = true;
    m.fixed = fixed;
    m.movable = movable;
    stale_ = true;
    m.granted = std::min(movable, may_be_granted(m));
    stale_ = true;
    m.mapped = m.committed = m.allowed = std::min(mapped, movable);
    offer(m, now);
    m.said_at = m.number;
    m.turn = ++turn_;
    m.idle_since = now;
}

void Residency::bind_expected() {
    if (host_promised() <= host_) return;
    for (auto& [id, m] : members_)
        if (m.gone) m.granted = std::min(m.granted, m.committed);
    stale_ = true;
}

void Residency::come_back(ClientId before, ClientId client, GroupId group, Nanoseconds now) {
    auto node = members_.extract(before);
    if (!node) return add(client, group, now);
    node.key() = client;
    Member& m = members_.insert(std::move(node)).position->second;
    m.gone = false;
    m.in = m.complete = m.mapped >= m.movable;
    m.entered = m.epoch = now;
    m.group = group;
    m.idle_since = now;
    ++m.number;
    if (m.said_at) m.said_at = m.number;
    orders_.push_back({client, m.allowed, m.number});  // it has a page of its own, and waits for a first one
    settle(now);
}

uint64_t Residency::only_presumed(ClientId client) const {
    const auto found = members_.find(client);
    if (found == members_.end()) return 0;
    const Member& m = found->second;
    return m.gone || m.seen != m.number || (!m.said_at && has_room(m)) ? m.committed : 0;
}

void Residency::refute(ClientId client, uint64_t confirmed, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end() || confirmed >= found->second.committed) return;
    Member& m = found->second;
    if (!m.said_at && gets_on(m, now)) return;  // the driver's word may be older than what it has done by now
    m.refuted = true;
    m.mapped = std::min(m.mapped, confirmed);
    stale_ = true;
}

bool Residency::note_fixed(ClientId client, uint64_t bytes) {
    const auto found = members_.find(client);
    if (found == members_.end() || found->second.fixed == bytes) return false;
    found->second.fixed = bytes;
    return true;
}

void Residency::set_fixed(ClientId client, uint64_t bytes, Nanoseconds now) {
    if (note_fixed(client, bytes)) settle(now);
}

void Residency::report(ClientId client, uint64_t mapped, uint32_t seen, bool complete, Nanoseconds now) {
    if (note(client, mapped, seen, complete, now)) settle(now);
}

void Residency::report(const std::vector<Report>& reports, Nanoseconds now) {
    bool news = false;
    for (const Report& r : reports) {
        if (r.moves) news |= note(r.client, r.mapped, r.seen, r.complete, now);
        news |= note_fixed(r.client, r.fixed);
    }
    if (news) settle(now);
}

bool Residency::note(ClientId client, uint64_t mapped, uint32_t seen, bool complete, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end()) return false;
    Member& m = found->second;
    mapped = std::min(mapped, m.committed);  // more than it was ever allowed is a lie, and must not displace others
    if (m.mapped == mapped && m.seen == seen && m.complete == complete) return false;
    m.mapped = mapped;
    m.seen = seen;
    if (mapped >= plus(m.filled, m.tenth)) {
        m.filled = mapped;
        m.got_on = now;
        m.at_will = false;
    }
    if (mapped >= m.allowed) m.at_will = false;
    const bool arrived = complete && !m.complete;
    m.complete = complete;
    if (arrived && m.in) {
        // One that has grown since it arrived has no more time for that.
        if (m.entry_bytes > 0) {
            m.epoch = now;
            // The first moves are slow: the host's memory for them is allocated meanwhile. That says nothing of later
            // ones, so the faster of the last two counts; of one alone, no more than what the link takes. And one may
            // find nearly all of its memory there every other time: as much as on average comes with the next, too.
            const bool first = m.last_bytes == 0;
            const auto bytes = static_cast<double>(m.entry_bytes);
            const auto bytes_before = static_cast<double>(first ? m.movable : m.last_bytes);
            const double before = first ? 1.0 / p_.bytes_per_ns : double(m.last_handover) / bytes_before;
            m.last_handover = now - m.entered;
            const double each = std::min(double(m.last_handover) / bytes, before);
            m.handover = Nanoseconds(each * (bytes + bytes_before) / 2.0);
            m.last_bytes = m.entry_bytes;
            m.entry_bytes = 0;
        }
    }
    return true;
}

void Residency::request(ClientId client, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end()) return;
    Member& m = found->second;
    if (m.active && (m.in || m.queued != kNever)) return;
    if (const Nanoseconds idle = now - m.idle_since; !m.active && idle > p_.idle)
        m.idles_for = m.idles_for == 0 ? idle : (m.idles_for * 3 + idle) / 4;
    m.active = true;
    if (!m.in && m.queued == kNever) m.queued = now;
    settle(now);
}

void Residency::idle(ClientId client, Nanoseconds now) {
    const auto found = members_.find(client);
    if (found == members_.end() || !found->second.active) return;
    Member& m = found->second;
    m.active = false;
    m.idle_since = now;
    if (!m.in) m.queued = kNever;
    settle(now);
}

}  // namespace gemlet::arbiter
