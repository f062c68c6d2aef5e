// What clients keep to while the daemon is silent: stopped, starved or dead.
//
// The device's time is divided in advance, by the clock that all processes share, so that nobody has to ask anybody
// then, and nobody has to believe what another client wrote: each reads its own page alone. Those that use the device
// divide it as the policy does now; the others may come in at any time, up to their group's maximum.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "server/server.hpp"

namespace gemlet::server {

namespace {

bool is_active(const Attachment& a) {
    return std::strcmp(a.state, "idle") != 0;
}

// One whose threads may wait now, or may begin to without a word to the daemon.
bool may_wait(const Attachment& a) {
    return is_active(a) && (!a.holds || a.bounded || std::strcmp(a.state, "runs") != 0);
}

// Others do not listen, unless one of these is there: it would keep to its part beside them while the daemon is
// silent, and they would have the rest and much of that part.
bool listens(const Attachment& a) {
    return may_wait(a) || (a.movable && a.movable->room_for != 0);
}

struct Terms {
    double share = 0, max = 1;  // of the device's time
    uint32_t active = 0;        // clients among which it is divided
};

uint32_t in_parts(double share) {
    return uint32_t(std::lround(std::clamp(share, 0.0, 1.0) * wire::kAgreedParts));
}

// True if somebody listens.
bool agree_on(Device& device, Nanoseconds now) {
    if (device.attachments.empty()) return false;
    bool listened = false, divided = false;
    std::map<std::string, Terms> groups;
    std::map<ClientId, Attachment*> by_age;  // so that a part stays where it was while the clients are the same
    for (auto& [id, a] : device.attachments) {
        groups[a->client->group].active += is_active(*a);
        listened = listened || listens(*a);
        divided = divided || may_wait(*a);
        by_age.emplace(id, a.get());
    }
    double total = 0;
    for (const GroupUsage& usage : device.arbiter->usage(now)) {
        auto found = groups.find(usage.spec.name);
        if (found == groups.end()) continue;
        Terms& group = found->second;
        group.max = usage.spec.max;
        if (group.active == 0) continue;
        // A policy without targets has weights all the same.
        group.share = std::min(usage.target > 0 ? usage.target : share_of(usage.spec), group.max);
        total += group.share;
    }
    double from = 0;
    for (auto& [id, a] : by_age) {
        const Terms& group = groups[a->client->group];
        double to = group.max;
        if (is_active(*a)) to = from + group.share / std::max(total, 1.0) / group.active;
        const double begin = is_active(*a) ? std::exchange(from, to) : 0.0;
        const uint32_t first = std::min(in_parts(begin), wire::kAgreedParts - 1);
        a->page->agreed.store(wire::agreed_word(first, std::max(in_parts(to), first + 1)), std::memory_order_relaxed);
        a->page->heard_ns.store(uint64_t(now), std::memory_order_release);
        a->page->listens.store(divided ? 1 : 0, std::memory_order_release);
    }
    return listened;
}

}  // namespace

// What agree_on() gives one that does not use the device, at once: a page on which nothing was agreed has no limit of
// time if the daemon is killed. To agree with all others anew for each that comes would take long where many do.
void Server::agree_with_newcomer(Attachment& attachment, const Group& group) {
    const uint32_t most = std::max(in_parts(group.settings.spec.max), 1u);
    attachment.page->agreed.store(wire::agreed_word(0, most), std::memory_order_relaxed);
}

void Server::agree(Nanoseconds now) {
    if (now < agree_at_) return;
    agree_at_ = now + Nanoseconds(wire::kHeardEvery);
    listened_ = false;
    for (auto& device : devices_)
        if (agree_on(*device, now)) listened_ = true;
}

}  // namespace gemlet::server
