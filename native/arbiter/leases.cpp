#include "arbiter/leases.hpp"

#include <algorithm>
#include <utility>

#include "arbiter/client.hpp"

namespace gemlet::arbiter {
namespace {

// Whether `next` had the device for itself only when `before` had drained.
bool follows(const Lease& next, const Lease& before) {
    if (next.sliced) return false;
    return before.serial < next.serial && !before.runs() && !before.is_lingering() && !Leases::co_run(before, next);
}

}  // namespace

Lease& Leases::start(Client* client, Group* group, Nanoseconds now) {
    leases_.push_back({.serial = ++serial_,
                       .client = client,
                       .group = group,
                       .sm = client->sm,
                       .granted = now,
                       .from = now,
                       .not_before = now,
                       .why = client->why(),
                       .slotted = group->planned > 0.0,
                       .observed = now,
                       .conditions = {}});
    find_starts();
    return leases_.back();
}

Lease* Leases::running(const Client* client) {
    for (Lease& lease : leases_) {
        if (lease.client == client && lease.runs()) return &lease;
    }
    return nullptr;
}

Lease* Leases::draining(const Client* client) {
    for (Lease& lease : leases_) {
        if (lease.client == client && !lease.runs()) return &lease;
    }
    return nullptr;
}

Lease* Leases::newest(const Client* client) {
    const auto found =
        std::find_if(leases_.rbegin(), leases_.rend(), [&](auto& lease) { return lease.client == client; });
    return found == leases_.rend() ? nullptr : &*found;
}

void Leases::stop(Lease& lease, Nanoseconds tail, Nanoseconds now) {
    charge(now);
    lease.stopped = now;
    if (!lease.is_lingering()) {
        lease.end = now;
        move_end(lease, now + tail);
    } else if (lease.lingers == now) {
        lease.presumed = tail;
    }
    find_starts();
    charge(now);
    // The estimates of a client that never reports a drain are believed. Two may be open: the one before a quick
    // second grant.
    size_t open = 0;
    for (const Lease& other : leases_) open += other.client == lease.client && !other.runs();
    if (open > 2) finish(*draining(lease.client), draining(lease.client)->end, now);
}

void Leases::linger(Lease& lease, Nanoseconds work_of_others, Nanoseconds now) {
    charge(now);
    if (lease.runs()) lease.end = now;
    if (!followed(lease)) lease.lingered = std::max<Nanoseconds>(0, now - lease.end);  // nobody else had that time
    for (Lease& other : leases_)
        if (follows(other, lease)) other.not_before = std::max(other.not_before, std::min(lease.end, now));
    lease.lingers = now;
    lease.others = work_of_others;
    find_starts();
}

void Leases::forgive(Lease& lease, Nanoseconds since, Nanoseconds now) {
    charge(now);
    lease.lingered = 0;
    lease.lingers = now;
    move_end(lease, since);
    charge(now);
}

void Leases::finish(Lease& lease, Nanoseconds at, Nanoseconds now) {
    if (lease.is_lingering()) {
        charge(now);
        const Nanoseconds late = std::clamp<Nanoseconds>(now - at, 0, now - lease.lingers);
        lease.lingered -= static_cast<Nanoseconds>(lease.slice * static_cast<double>(late));
        lease.lingers = kNever;
        charge(lease, now);
        leases_.erase(leases_.begin() + (&lease - leases_.data()));
        return;
    }
    const Nanoseconds estimated = lease.end;
    move_end(lease, at);
    charge(lease, now);
    for (Lease& other : leases_) {
        if (follows(other, lease)) other.not_before = std::max(other.not_before, lease.end);
        if (!follows(lease, other) || lease.end <= lease.from) continue;
        const double part = static_cast<double>(lease.charged) / static_cast<double>(lease.end - lease.from);
        other.later.push_back({lease.group, lease.from, lease.end, part});
    }
    for (const Lease::Later& later : lease.later) {
        const Nanoseconds time = std::min(later.end, at) - std::max(later.from, estimated);
        if (time <= 0) continue;
        const auto wrong = static_cast<Nanoseconds>(later.part * static_cast<double>(time));
        later.group->used -= wrong;
        policy_.charge(*later.group, -wrong, now);
    }
    leases_.erase(leases_.begin() + (&lease - leases_.data()));
    find_starts();
    charge(now);
}

void Leases::slice(Lease& lease, Nanoseconds now) {
    charge(now);
    lease.serial = ++serial_;
    lease.from = lease.not_before = now;
    lease.charged = lease.spared = lease.lingered = 0;
    lease.sliced = true;
}

void Leases::forget(const Group* group) {
    for (Lease& lease : leases_)
        std::erase_if(lease.later, [&](const Lease::Later& later) { return later.group == group; });
}

void Leases::find_starts() {
    stopping_.clear();
    for (const Lease& lease : leases_)
        if (!lease.runs()) stopping_.push_back(&lease);
    for (Lease& lease : leases_) {
        Nanoseconds from = lease.not_before;
        for (const Lease* before : stopping_) {
            if (follows(lease, *before)) from = std::max(from, before->end);
        }
        if (from != lease.from) move_start(lease, from);
    }
}

// Later or earlier than was thought. What it is charged for and was spared since changes with it.
void Leases::move_start(Lease& lease, Nanoseconds from) {
    Nanoseconds until = lease.runs() ? now_ : std::min(now_, lease.stopped);
    if (lease.is_lingering()) until = std::min(until, lease.end);
    const auto before = static_cast<double>(until - lease.from);
    const double after = static_cast<double>(std::max<Nanoseconds>(0, until - from));
    lease.from = from;
    const double whole = before > 0.0 ? static_cast<double>(lease.spared) / before : 1.0 - lease.rate;
    lease.spared = static_cast<Nanoseconds>(whole * after);
}

// What is in flight when it stops is charged at the same rate.
void Leases::move_end(Lease& lease, Nanoseconds end) {
    lease.spared += static_cast<Nanoseconds>(static_cast<double>(end - lease.end) * (1.0 - lease.rate));
    lease.end = end;
}

void Leases::charge(Lease& lease, Nanoseconds now) {
    // Work in flight after a stop is charged at once; otherwise a client that submits far ahead would get the
    // token again before it has been charged.
    const Nanoseconds owed = due(lease, now), amount = owed - lease.charged;
    if (amount == 0) return;
    lease.charged = owed;
    lease.group->used += amount;
    if (lease.client) {
        lease.client->used += amount;
        lease.client->charged += amount;
    }
    policy_.charge(*lease.group, amount, now);
}

Nanoseconds Leases::since_charge(const Lease& lease, Nanoseconds now) const {
    return std::max<Nanoseconds>(0, now - std::max(now_, lease.from));
}

Nanoseconds Leases::spared(const Lease& lease, Nanoseconds now) const {
    if (!lease.runs() || lease.is_lingering()) return 0;  // of what was in flight then move_end() has taken care
    return static_cast<Nanoseconds>((1.0 - lease.rate) * static_cast<double>(since_charge(lease, now)));
}

Nanoseconds Leases::lingered(const Lease& lease, Nanoseconds now) const {
    if (!lease.is_lingering()) return 0;
    return static_cast<Nanoseconds>(lease.slice * static_cast<double>(std::max<Nanoseconds>(0, now - now_)));
}

Nanoseconds Leases::due(const Lease& lease, Nanoseconds now) const {
    Nanoseconds beside = lease.lingered + lingered(lease, now);
    if (lease.is_lingering()) beside = std::max(lease.presumed, beside);
    const Nanoseconds until = lease.runs() && !lease.is_lingering() ? now : lease.end;
    return beside + std::max<Nanoseconds>(0, until - lease.from - lease.spared - spared(lease, now));
}

void Leases::charge(Nanoseconds now) {
    for (Lease& lease : leases_) {
        lease.spared += spared(lease, now);
        lease.lingered += lingered(lease, now);
    }
    now_ = std::max(now_, now);
    for (Lease& lease : leases_) charge(lease, now);
}

bool Leases::followed(const Lease& lease) const {
    return std::any_of(leases_.begin(), leases_.end(), [&](const Lease& next) { return follows(next, lease); });
}

double Leases::occupied() const {
    double sum = 0.0;
    for (const Lease& lease : leases_) {
        if (lease.in_the_way()) sum += lease.sm;
    }
    return sum;
}

}  // namespace gemlet::arbiter
