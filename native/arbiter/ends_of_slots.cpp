// How a slot of a gang ends (gangs.hpp): which of its ranks goes on, and for how much, so that nothing of it waits on
// a device for a peer that was stopped.
#include <algorithm>
#include <limits>

#include "arbiter/counters.hpp"
#include "arbiter/gangs.hpp"

namespace gemlet::arbiter {

Nanoseconds Gangs::quiet_from(const Gang& gang) const {
    Nanoseconds last = 0;
    for (const Member& member : gang.members) last = std::max(last, member.seen.moved);
    return last + p_.slack;
}

// What one rank has submitted or completed may be what its peer waits for.
bool Gangs::stuck(const Gang& gang, Nanoseconds now) const {
    return now >= quiet_from(gang) && std::any_of(gang.members.begin(), gang.members.end(),
                                                  [](const Member& member) { return member.seen.stuck; });
}

bool Gangs::ended(const Gang& gang) const {
    return std::any_of(gang.members.begin(), gang.members.end(),
                       [](const Member& member) { return member.seen.ended; });
}

// What clients count is a claim. One that counts down, or starts anew, has submitted nothing since.
uint32_t Gangs::counted(const Member& member, uint64_t before) {
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    return static_cast<uint32_t>(std::min(member.seen.launches - std::min(before, member.seen.launches), kMost));
}

uint32_t Gangs::behind(const Gang& gang, const Member& member) {
    if (member.seen.at_rest == 0) return 0;
    const auto since = [](const Member& each) { return counted(each, each.launches_at_rest); };
    uint32_t most = 0;
    for (const Member& other : gang.members) {
        if (other.seen.clients != 1) return 0;  // which of them would it be?
        most = std::max(most, since(other));
    }
    return most - std::min(most, since(member));
}

// Whether somebody can go on of whom it is known by how much. Counts begin when all were last at rest. Hosts need not
// have come equally far then, so a rank that waits on its device may seem to be the one that is behind.
bool Gangs::known_behind(const Gang& gang) {
    return std::any_of(gang.members.begin(), gang.members.end(),
                       [&](const Member& each) { return behind(gang, each) > 0; });
}

// Ranks submit the same, each to its own device. So one that is behind submits what its peers have on the device
// already, and no more: they would have to go on for that in turn. Where none seems to be behind, all that are at
// rest go on.
void Gangs::go_on_for_peers(const Gang& gang, const Member& member, Reservation& reservation) const {
    reservation.submissions = behind(gang, member);
    if (!known_behind(gang) || reservation.submissions > 0) reservation.go_on = member.seen.at_rest;
}

// The rank that the others wait for has asked for nothing: there is nothing to wait for but its host. It catches up
// when that comes.
bool Gangs::host_is_late(const Gang& gang, Nanoseconds now) const {
    return stuck(gang, now) && std::any_of(gang.members.begin(), gang.members.end(), [&](const Member& member) {
               return !member.seen.wants && behind(gang, member) > 0;
           });
}

// How much it may submit though its gang is out of its slot. What one rank left on its device when the others were
// stopped takes slices from the next gang, until its peers have submitted the same. Where it is not known how much
// that is, as much as it has submitted since the slot ended: so no more than twice what it takes.
uint32_t Gangs::catch_up(const Gang& gang, const Member& member, Nanoseconds now) const {
    const bool may = gang.phase == Gang::Phase::kOut && !spent(gang) && stuck(gang, now);
    if (!may || member.seen.at_rest == 0) return 0;
    if (known_behind(gang)) return behind(gang, member);
    if (gang.hangs) return 0;
    constexpr uint64_t kMost = 64;
    return static_cast<uint32_t>(std::clamp<uint64_t>(counted(member, member.launches_at_end), 1, kMost));
}

bool Gangs::catches_up(const Gang& gang) {
    return gang.phase == Gang::Phase::kOut &&
           std::any_of(gang.members.begin(), gang.members.end(),
                       [](const Member& member) { return member.seen.catches_up; });
}

Nanoseconds Gangs::work(const Gang& gang) {
    Nanoseconds sum = 0;
    for (const Member& member : gang.members) sum = sum_of(sum, member.seen.work);
    return sum;
}

bool Gangs::drained(const Gang& gang) const {
    return std::none_of(gang.members.begin(), gang.members.end(),
                        [](const Member& member) { return member.seen.busy; });
}

}  // namespace gemlet::arbiter
