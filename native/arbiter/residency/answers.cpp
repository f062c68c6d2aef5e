// Queries: where clients' memory is, what is promised, and the reasons, for people.
#include <algorithm>
#include <cstdio>

#include "arbiter/residency/residency.hpp"
#include "arbiter/saturating.hpp"

namespace gemlet::arbiter {

uint64_t Residency::may_be_granted(const Member& member) const {
    uint64_t bytes = kUnlimited;
    for (const Scope& scope : scopes_of(member)) bytes = std::min(bytes, room(scope, &member));
    return bytes;
}

// The most of `member` that could ever have to be on the host: what its scopes lack if all want to be in.
// If `changed` had `movable` bytes instead of what it was granted.
uint64_t Residency::host_of(const Member& member, const Member* changed, uint64_t movable) const {
    const uint64_t mine = &member == changed ? movable : member.granted;
    uint64_t lack = 0;
    for (const Scope& scope : scopes_of(member)) {
        Total sum = scope.sums->granted;
        if (changed && (!scope.is_group || changed->group == member.group)) sum = sum - changed->granted + movable;
        lack = std::max(lack, beyond(sum, room(scope)));
    }
    return std::min(mine, lack);
}

uint64_t Residency::host_promised() const {
    uint64_t sum = 0;
    for (const auto& [id, m] : members_) sum = plus(sum, host_of(m));
    return sum;
}

uint64_t Residency::movable(ClientId client) const {
    const auto found = members_.find(client);
    return found == members_.end() ? 0 : found->second.movable;
}

uint64_t Residency::committed(ClientId client) const {
    const auto found = members_.find(client);
    return found == members_.end() ? 0 : found->second.committed;
}

uint64_t Residency::held() const {
    uint64_t sum = 0;
    for (const auto& [id, m] : members_) sum = plus(sum, plus(m.committed, m.fixed));
    return sum;
}

template <class Holds>
bool Residency::in_all_scopes_of(ClientId client, Holds&& holds) const {
    const auto found = members_.find(client);
    if (found == members_.end()) return true;
    const Scopes scopes = scopes_of(found->second);
    return std::all_of(scopes.begin(), scopes.end(), holds);
}

bool Residency::within(ClientId client) const {
    return in_all_scopes_of(
        client, [](const Scope& scope) { return scope.sums->committed + scope.sums->fixed <= scope.limit; });
}

bool Residency::fits_fixed(ClientId client, uint64_t bytes) const {
    return in_all_scopes_of(
        client, [&](const Scope& scope) { return scope.sums->fixed + scope.sums->largest + bytes <= scope.limit; });
}

bool Residency::fits_if_it_stays(ClientId client, uint64_t bytes) const {
    return in_all_scopes_of(client, [&](const Scope& scope) {
        const Member& mine = members_.at(client);
        uint64_t largest = minus(mine.granted, bytes);
        for (const auto& [id, other] : members_)
            if (id != client && (!scope.is_group || other.group == mine.group))
                largest = std::max(largest, other.granted);
        return scope.sums->fixed + largest + bytes <= scope.limit;
    });
}

uint64_t Residency::ceiling(ClientId client) const {
    const auto found = members_.find(client);
    return found == members_.end() ? kUnlimited : may_be_granted(found->second);
}

uint64_t Residency::host(ClientId client) const {
    const auto found = members_.find(client);
    return found == members_.end() ? 0 : host_of(found->second, &found->second, found->second.movable);
}

bool Residency::resident(ClientId client) const {
    const auto found = members_.find(client);
    return found == members_.end() || (found->second.in && found->second.complete);
}

bool Residency::may_stay(ClientId client) const {
    const auto found = members_.find(client);
    return found == members_.end() || found->second.in;
}

std::vector<ResidencyUsage> Residency::usage(Nanoseconds now) const {
    std::vector<ResidencyUsage> all;
    bool somebody_waits = false;
    for (const auto& [id, m] : members_) somebody_waits = somebody_waits || m.queued != kNever;
    const Demand wanted = demand();
    for (const auto& [id, m] : members_) {
        ResidencyUsage u{id,
                         m.movable,
                         m.mapped,
                         m.allowed,
                         m.in && m.complete,
                         m.queued != kNever,
                         host_of(m, &m, m.movable),
                         kNever,
                         m.last_handover,
                         ""};
        if (m.in && somebody_waits) u.epoch_end = may_go_at(m, wanted, now);
        char text[200] = "";
        constexpr double mib = 1 << 20;
        if (m.movable > ceiling(id))
            std::snprintf(text, sizeof text,
                          pinned(m)
                              ? "has %.0f MiB, and no more than %.0f MiB are left beside what cannot move and other "
                                "clients of class latency: these take turns now"
                              : "has %.0f MiB, and no more than %.0f MiB fit on the device since the limit changed",
                          double(m.movable) / mib, double(ceiling(id)) / mib);
        else if (m.in && !m.complete)
            std::snprintf(text, sizeof text, "its memory is being brought back (%.0f of %.0f MiB are on the device)",
                          double(m.mapped) / mib, double(m.movable) / mib);
        else if (!m.in && m.mapped > m.allowed)
            std::snprintf(text, sizeof text, "its memory leaves the device for another's (%.0f of %.0f MiB have to)",
                          double(minus(m.mapped, m.allowed)) / mib, double(m.movable) / mib);
        else if (!m.in && m.queued != kNever)
            std::snprintf(text, sizeof text, "waits for room on the device: %.0f of its %.0f MiB are on the host",
                          double(minus(m.movable, m.mapped)) / mib, double(m.movable) / mib);
        else if (!m.in)
            std::snprintf(text, sizeof text, "idle, %.0f of its %.0f MiB are on the host",
                          double(minus(m.movable, m.mapped)) / mib, double(m.movable) / mib);
        u.reason = text;
        all.push_back(std::move(u));
    }
    return all;
}

}  // namespace gemlet::arbiter
