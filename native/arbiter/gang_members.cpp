// Which groups are gangs, who belongs to each, what its ranks do at present, and whether it needs slots (gangs.hpp).
#include <algorithm>
#include <map>
#include <utility>

#include "arbiter/gangs.hpp"

namespace gemlet::arbiter {
namespace {

// Nobody waits on a device this long for a peer that does nothing.
constexpr Nanoseconds kAway = 1'000'000'000;

}  // namespace

void Gangs::add(Arbiter& device) {
    devices_.push_back({.arbiter = &device});
    changed_ = true;
}

// Any user's program may have a device forgotten that it made up: what gangs have had and are owed on others stays.
void Gangs::remove(Arbiter& device) {
    const auto found =
        std::find_if(devices_.begin(), devices_.end(), [&](const Device& each) { return each.arbiter == &device; });
    if (found == devices_.end()) return;
    for (const Gang& gang : gangs_) forget_peers(gang);  // those that are left hear of them anew
    const auto place = static_cast<size_t>(found - devices_.begin());
    devices_.erase(found);
    for (Gang& gang : gangs_) {
        for (auto* members : {&gang.members, &gang.away}) {
            std::erase_if(*members, [&](const Member& member) { return member.device == place; });
            for (Member& member : *members)
                if (member.device > place) --member.device;
        }
    }
    changed_ = true;
}

void Gangs::tie(const std::string& group, bool tied) {
    changed_ |= tied ? tied_.insert(group).second : tied_.erase(group) > 0;
}

bool Gangs::saturates(const Gang& gang) {
    return std::all_of(gang.members.begin(), gang.members.end(),
                       [](const Member& member) { return member.seen.clients > 0 && member.seen.ranks.saturate; });
}

void Gangs::find_members() {
    bool changed = std::exchange(changed_, false);
    for (Device& device : devices_) {
        const uint64_t now = device.arbiter->changes();
        changed |= std::exchange(device.changes, now) != now;
    }
    if (!changed) return;
    std::map<std::string, std::pair<GroupSpec, std::vector<Member>>> found;
    for (size_t i = 0; i < devices_.size(); ++i) {
        for (const Arbiter::Name& name : devices_[i].arbiter->names()) {
            const bool tied = tied_.contains(name.name);
            if (name.gang == arbiter::Gang::kOff || (name.gang == arbiter::Gang::kAuto && !tied)) continue;
            auto& [spec, members] = found[name.name];
            spec = *devices_[i].arbiter->spec(name.group);
            Member member{.device = i, .least = spec.min};
            member.seen.group = name.group;
            members.push_back(member);
        }
    }
    std::vector<Gang> gangs;
    for (auto& [name, each] : found) {
        if (each.second.size() < 2) continue;
        Gang gang;
        if (Gang* known = find(name)) gang = *known;
        const auto before = std::exchange(gang.members, {});
        gang.away.clear();
        for (Member& member : each.second) {
            const auto was = std::find_if(before.begin(), before.end(),
                                          [&](const Member& other) { return other.device == member.device; });
            if (was != before.end()) {
                const Member is = std::exchange(member, *was);
                member.least = is.least;
                member.seen.group = is.seen.group;
            }
            (was != before.end() ? gang.members : gang.away).push_back(member);
        }
        gang.name = name;
        gang.spec = each.first;
        gang.find_minimum();
        gangs.push_back(std::move(gang));
    }
    for (const Gang& gang : gangs_) forget_peers(gang);  // those that still are gangs hear of them anew
    gangs_ = std::move(gangs);
    std::erase_if(table_, [&](const Entry& entry) { return !find(entry.gang); });
}

// It may be in force on one device alone.
void Gangs::Gang::find_minimum() {
    const auto less = [](const Member& a, const Member& b) { return a.least < b.least; };
    if (!members.empty()) spec.min = std::min_element(members.begin(), members.end(), less)->least;
}

void Gangs::forget_peers(const Gang& gang) {
    for (const Member& member : gang.members) devices_[member.device].arbiter->hear(member.seen.group, {});
}

void Gangs::hold(const Gang& gang, std::vector<bool>& devices) {
    for (const Member& member : gang.members) devices[member.device] = true;
}

bool Gangs::is_on(const Gang& gang, const std::vector<bool>& devices) {
    return std::any_of(gang.members.begin(), gang.members.end(),
                       [&](const Member& member) { return devices[member.device]; });
}

std::vector<bool> Gangs::taken() const {
    std::vector<bool> devices(devices_.size());
    for (const Gang& gang : gangs_)
        if (gang.phase != Gang::Phase::kOut) hold(gang, devices);
    return devices;
}

// A rank that wants nothing at the moment has its share nevertheless. The last one that it had may be that of a
// moment in which others paused, too: it is no more than the least of late, or gangs have more together than there
// is.
void Gangs::Member::find_due(Nanoseconds now, Nanoseconds cycle) {
    if (now - due_since >= cycle) {
        least_before = std::exchange(least_due, kUnknown);
        due_since = now;
    }
    if (seen.due >= 0.0) {
        due = seen.due;
        least_due = std::min(least_due, due);
    } else if (due >= 0.0) {
        due = std::min({due, least_due, least_before});
    }
}

void Gangs::attend(Gang& gang, Nanoseconds now) {
    const Nanoseconds time = now - accounted_;  // since the last look
    const auto looked = [&](Member& member) {
        member.seen = devices_[member.device].arbiter->attendance(member.seen.group);
        member.find_due(now, p_.cycle_max);
    };
    const bool worked =
        std::any_of(gang.members.begin(), gang.members.end(), [](const Member& member) { return member.seen.busy; });
    for (Member& member : gang.members) {
        if (worked && !member.works()) member.idle += time;
        looked(member);
        if (member.works()) member.idle = 0;
    }
    for (Member& member : gang.away) looked(member);
    const auto leaves = [](const Member& member) { return member.idle >= kAway; };
    const auto comes = [](const Member& member) { return member.works(); };
    if (std::any_of(gang.members.begin(), gang.members.end(), leaves) ||
        std::any_of(gang.away.begin(), gang.away.end(), comes))
        regroup(gang);
}

void Gangs::regroup(Gang& gang) {
    std::vector<Member> there, away;
    for (Member& member : std::exchange(gang.members, {})) {
        if (member.idle >= kAway) devices_[member.device].arbiter->hear(member.seen.group, {});
        (member.idle < kAway ? there : away).push_back(member);
    }
    for (Member& member : std::exchange(gang.away, {})) {
        member.idle = 0;
        member.launches_at_end = member.seen.launches;
        (member.works() ? there : away).push_back(member);
    }
    gang.members = std::move(there);
    gang.away = std::move(away);
    for (Member& member : gang.members) member.launches_at_rest = member.seen.launches;  // counts begin together
    plan_anew_ |= gang.planned;
    gang.find_minimum();
}

void Gangs::look(Nanoseconds now) {
    if (!gangs_.empty())
        for (const Device& device : devices_) device.arbiter->attend(now);
    for (Device& device : devices_) device.met = false;
    for (Gang& gang : gangs_) {
        gang.wants = gang.contends = gang.exclusive = false;
        attend(gang, now);
        for (const Member& member : gang.members) {
            gang.contends |= member.seen.contends;
            gang.wants |= member.seen.wants;
            gang.exclusive |= member.seen.exclusive;
            devices_[member.device].met |= member.seen.met;
        }
        if (drained(gang))
            for (Member& member : gang.members) member.launches_at_rest = member.seen.launches;
        for (Member& member : gang.members) {
            const bool finishes = gang.phase == Gang::Phase::kFinishing && member.seen.at_rest == 0;
            if (!gang.planned || gang.phase == Gang::Phase::kIn || finishes)
                member.launches_at_end = member.seen.launches;
        }
        if (gang.wants)
            gang.wanted_at = now;
        else
            gang.paused = true;
        gang.claims =
            gang.wants || (gang.had_slots.share(now) < gang.spec.min && now - gang.wanted_at <= p_.cycle_max);
        for (const Member& member : gang.members) {
            Ranks peers;
            for (const Member& other : gang.members)
                if (other.device != member.device) peers.add(other.seen.ranks);
            devices_[member.device].arbiter->hear(member.seen.group, peers);
        }
    }
    // Gangs that had slots together share again together, or some would wait on their devices for the others' ends.
    // One that shares with all whom it meets waits for nobody, unless it is always at work on all its devices: then
    // it would run in all their slots, in slices, and their ranks would wait for each other there.
    std::vector<bool> held(devices_.size());  // whether one of those that are held is on it
    for (Gang& gang : gangs_) {
        gang.held = gang.contends && gang.together();
        if (gang.held) hold(gang, held);
    }
    for (bool more = true; std::exchange(more, false);)
        for (Gang& gang : gangs_) {
            const bool had_slots = gang.planned && gang.exclusive;
            if (gang.held || !gang.together() || !(had_slots || saturates(gang)) || !is_on(gang, held)) continue;
            gang.held = more = true;
            hold(gang, held);
        }
    for (Gang& gang : gangs_) {
        const bool planned = gang.together() && (gang.capped() || gang.held);
        if (planned == gang.planned) continue;
        gang.planned = planned;
        plan_anew_ = true;
        if (!planned) gang.phase = Gang::Phase::kOut;
        gang.credit = 0.0;
        gang.served = now;
    }
    std::erase_if(table_, [&](const Entry& entry) { return !find(entry.gang)->planned; });
}

}  // namespace gemlet::arbiter
