// Who has the next slots, how long they are, and when they begin and end (gangs.hpp).
#include "arbiter/gangs.hpp"

#include <algorithm>
#include <utility>

#include "arbiter/counters.hpp"

namespace gemlet::arbiter {
namespace {

constexpr int kRounds = 4;  // what one device does may be news for another
constexpr double kLeastShare = 0.01;

}  // namespace

bool Gangs::is_gang(const std::string& group) const {
    const Gang* gang = find(group);
    return gang && gang->together();
}

const Gangs::Gang* Gangs::find(const std::string& name) const {
    const auto found = std::lower_bound(gangs_.begin(), gangs_.end(), name,
                                        [](const Gang& gang, const std::string& other) { return gang.name < other; });
    return found == gangs_.end() || found->name != name ? nullptr : &*found;
}

Gangs::Gang* Gangs::find(const std::string& name) {
    return const_cast<Gang*>(std::as_const(*this).find(name));
}

// Slots end a little early if what a rank would submit next ends too late. The next ones begin then.
bool Gangs::nearly(Nanoseconds then, Nanoseconds now) const {
    return then != kNever && then - now <= p_.quantum_min;
}

bool Gangs::meet(const Gang& a, const Gang& b) const {
    return std::any_of(a.members.begin(), a.members.end(), [&](const Member& member) {
        return std::any_of(b.members.begin(), b.members.end(),
                           [&](const Member& other) { return other.device == member.device; });
    });
}

bool Gangs::alone(const Gang& gang) const {
    const bool met = std::any_of(gang.members.begin(), gang.members.end(),
                                 [](const Member& member) { return member.seen.met_lately; });
    return !met && !gang.capped() && std::none_of(gangs_.begin(), gangs_.end(), [&](const Gang& other) {
        return &other != &gang && other.planned && other.wants && meet(gang, other) &&
               (other.share > 0.0 || other.credit > 0.0);
    });
}

bool Gangs::devices_free(const Gang& gang) const {
    return std::none_of(gangs_.begin(), gangs_.end(),
                        [&](const Gang& other) { return other.phase != Gang::Phase::kOut && meet(gang, other); });
}

Nanoseconds Gangs::next_start(const Gang& gang) const {
    Nanoseconds start = kNever;
    for (const Entry& entry : table_) {
        if (entry.from < start && entry.gang != gang.name && meet(*find(entry.gang), gang)) start = entry.from;
    }
    return start;
}

// One that gets nothing on one device cannot run on the others.
double Gangs::due_share(const Gang& gang) {
    double least = -1.0;
    for (const Member& member : gang.members)
        if (member.due >= 0.0) least = least < 0.0 ? member.due : std::min(least, member.due);
    return std::max(least, 0.0);
}

// What each has had of its share. Time that a gang does not want is not saved up, and time that nobody else wants is
// not charged for.
void Gangs::account(Nanoseconds now) {
    const auto time = static_cast<double>(now - std::exchange(accounted_, now));
    const auto cycle = static_cast<double>(p_.cycle_max);
    for (Gang& gang : gangs_) {
        if (!gang.planned) continue;
        const double most = gang.claims ? cycle / 2.0 : 0.0;
        gang.credit = std::min(gang.credit + gang.share * time, std::max(most, 0.0));
        // Others came since the cycle was planned: what was left to best effort until then is not owed to it.
        if (gang.best_effort() && gang.wants) gang.share = std::min(gang.share, due_share(gang));
        // What it has in the slots of others is taken from its own.
        if (catches_up(gang)) {
            // Not so much that it may not go on while it has the device in slices: one whose ranks wait for each
            // other there would never have it back.
            const bool waits = std::any_of(gang.members.begin(), gang.members.end(),
                                           [](const Member& member) { return member.seen.waits_for_peer; });
            gang.credit = std::max(gang.credit - time, waits ? std::min(gang.credit, 1.0 - kSpent * cycle) : -cycle);
        }
        if (gang.phase == Gang::Phase::kOut) continue;
        gang.had_slots.add(static_cast<Nanoseconds>(time), now);
        // No less than it has just become due: nothing is owed to one that runs.
        const double had =
            gang.phase == Gang::Phase::kIn ? std::min(time, std::max(gang.due, gang.share * time)) : time;
        gang.due = std::max(gang.due - had, 0.0);
        gang.credit = std::max(gang.credit - had, -cycle);
    }
    const std::vector<bool> taken = this->taken();
    for (size_t i = 0; i < devices_.size(); ++i) account(devices_[i], !taken[i], time);
}

// A gang that pauses gives the rest of its slot back, and what is left of the cycle is planned anew. So those in no
// gang, to whom the end of a cycle belongs, might wait for it without end.
void Gangs::account(Device& device, bool is_free, double time) const {
    const auto cycle = static_cast<double>(p_.cycle_max);
    device.credit = std::min(device.credit + device.share * time, device.met ? cycle : 0.0);
    if (is_free) device.credit = std::max(device.credit - time, 0.0);
    if (device.credit <= 0.0) device.owed = false;
    if (device.share > 0.0 && device.credit >= device.share * cycle) device.owed = true;
}

void Gangs::begin(Gang& gang, Nanoseconds until, double due, bool fills) {
    gang.phase = Gang::Phase::kIn;
    gang.slot = ++slots_;
    gang.until = until;
    gang.due = due;
    gang.fills = fills;
    gang.work = work(gang);
}

void Gangs::over(Gang& gang, Nanoseconds now) {
    gang.phase = Gang::Phase::kOut;
    gang.fills = false;
    gang.served = now;
    plan_anew_ |= std::exchange(gang.cuts, false);
}

// A slot ends for one in no gang that comes back from a pause and has waited for slots for too long for its minimum,
// unless the gang has had less than its own. What it pauses for it does not save up, so the time that slots leave may
// never come while it wants it.
void Gangs::pay(Gang& gang, Nanoseconds now) {
    if (gang.spec.min > 0.0 && gang.had_slots.share(now) < gang.spec.min) return;
    for (const Member& member : gang.members) {
        if (!member.seen.owes) continue;
        Device& device = devices_[member.device];
        device.owed = true;
        device.credit = std::max(device.credit, device.share * static_cast<double>(p_.cycle_max));
        gang.until = std::min(gang.until, now + p_.quantum_min);
        gang.cuts = true;
    }
}

void Gangs::end_slots(Nanoseconds now) {
    for (Gang& gang : gangs_) {
        if (gang.phase == Gang::Phase::kIn) {
            const bool met = std::any_of(gang.members.begin(), gang.members.end(),
                                         [](const Member& member) { return member.seen.met; });
            if (gang.fills && met) gang.until = std::min(gang.until, now + p_.quantum_min);
            if (!gang.fills) pay(gang, now);
            if (gang.until == kNever && !alone(gang)) gang.until = now + p_.quantum_min;
            if (!gang.claims) {
                plan_anew_ |= !gang.fills;
                over(gang, now);
            } else if (now >= gang.until || ended(gang)) {
                // Ranks find at different steps that the next one ends too late. The first one to stop says so while
                // its last step still runs, in time for its peers not to begin another, which would wait for it.
                // Who comes next has the time that is left, if it is long.
                gang.cuts |= !nearly(gang.until, now);
                gang.phase = Gang::Phase::kFinishing;
                gang.until = std::min(gang.until, now);
            }
        }
        if (gang.phase != Gang::Phase::kFinishing) continue;
        const bool drained = this->drained(gang), got_on = growth(work(gang), gang.work) > 0;
        if (drained || got_on) gang.hangs = false;
        const Nanoseconds limit = gang.until + (gang.hangs ? p_.slack : p_.finish);
        if (!drained && now < limit && !host_is_late(gang, now)) continue;
        gang.hangs = !drained && !got_on;
        gang.paused = !gang.wants;
        over(gang, now);
    }
}

// A gang of the class latency does not wait for its slot, as long as it is not ahead of its share. What goes on after
// its slot is no new request, and waits for the next one.
void Gangs::interrupt(Nanoseconds now) {
    for (Gang& gang : gangs_) {
        if (!gang.planned || !gang.latency() || !gang.wants || !gang.paused || gang.phase != Gang::Phase::kOut)
            continue;
        if (spent(gang)) continue;
        bool free = true;
        for (Gang& other : gangs_) {
            if (&other == &gang || other.phase == Gang::Phase::kOut || !meet(gang, other)) continue;
            free = false;
            if (other.phase != Gang::Phase::kIn || other.latency()) continue;
            other.until = now;
            gang.cuts = true;
        }
        std::erase_if(table_, [&](const Entry& entry) { return entry.gang == gang.name; });
        if (!free) continue;
        const double length = std::max(gang.share * static_cast<double>(p_.cycle_max) + gang.credit,
                                       static_cast<double>(p_.quantum_min));
        begin(gang, alone(gang) ? kNever : now + static_cast<Nanoseconds>(length), length, false);
    }
}

void Gangs::plan(Nanoseconds now) {
    plan_anew_ = false;
    table_.clear();
    const auto cycle = static_cast<double>(p_.cycle_max);
    std::vector<Nanoseconds> free_from(devices_.size(), 0);
    for (const Gang& gang : gangs_) {
        if (gang.phase == Gang::Phase::kOut) continue;
        const Nanoseconds until = gang.until == kNever ? p_.cycle_max : std::max<Nanoseconds>(0, gang.until - now);
        for (const Member& member : gang.members)
            free_from[member.device] = std::max(free_from[member.device], until);
    }
    // Who waited longest goes first.
    std::vector<Gang*> order;
    for (Gang& gang : gangs_)
        if (gang.planned && gang.claims && !(gang.phase != Gang::Phase::kOut && gang.until == kNever))
            order.push_back(&gang);
    std::stable_sort(order.begin(), order.end(), [](const Gang* a, const Gang* b) {
        const bool out_a = a->phase == Gang::Phase::kOut, out_b = b->phase == Gang::Phase::kOut;
        return out_a != out_b ? out_a : a->served < b->served;
    });
    std::vector<Wish> wishes;
    for (Device& device : devices_) device.share = 1.0;
    for (Gang* gang : order) {
        gang->share = due_share(*gang);
        const bool met = std::any_of(gang->members.begin(), gang->members.end(),
                                     [](const Member& member) { return member.seen.met_lately; });
        Wish wish{.devices = {}, .share = 0.0, .least = 0.0, .may_grow = !met && !gang->capped()};
        wish.share = std::clamp(gang->share + gang->credit / cycle, 0.0, 1.0);
        // One that hangs gets nothing done in its slots. It still has short ones, to see when what it waits for has
        // come. So has one that has work in flight, though it owes what that took in slices: it would take them
        // without end. Best effort gets only what is left.
        const double shortest = static_cast<double>(p_.quantum_min + 1) / cycle;
        if (gang->hangs)
            wish.share = std::min(wish.share, shortest);
        else if (gang->phase == Gang::Phase::kOut && !gang->best_effort() && !drained(*gang))
            wish.share = std::max(wish.share, shortest);
        // A little that the minima of others leave to nobody would never fit beside them.
        const bool little = !gang->best_effort() && gang->share <= kLeastShare;
        wish.least = little ? wish.share : std::min(gang->spec.min, wish.share);
        for (const Member& member : gang->members) {
            wish.devices.push_back(member.device);
            double& left = devices_[member.device].share;
            left = std::max(0.0, left - gang->share);
        }
        wishes.push_back(std::move(wish));
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
        const Device& device = devices_[i];
        if (!device.owed || !device.met) continue;
        wishes.insert(wishes.begin(), {.devices = {i}, .share = std::min(1.0, device.credit / cycle)});
        order.insert(order.begin(), nullptr);
    }
    cycle_end_ = now + p_.cycle_max;
    for (const Slot& slot : timetable(wishes, free_from, p_.cycle_max, p_.quantum_min)) {
        if (!order[slot.wish]) continue;
        const Gang& gang = *order[slot.wish];
        table_.push_back({gang.name, now + slot.from, alone(gang) ? kNever : now + slot.until, slot.due});
    }
}

void Gangs::start_slots(Nanoseconds now) {
    for (size_t i = 0; i < table_.size();) {
        Gang& gang = *find(table_[i].gang);
        if ((table_[i].from > now && !nearly(table_[i].from, now)) || !devices_free(gang)) {
            ++i;
            continue;
        }
        const Entry entry = table_[i];
        table_.erase(table_.begin() + static_cast<std::ptrdiff_t>(i));
        if (!gang.claims) {
            plan_anew_ = true;
            continue;
        }
        const Nanoseconds until = entry.until == kNever ? kNever : std::max(entry.until, now + p_.quantum_min);
        begin(gang, until, static_cast<double>(entry.due), false);
    }
}

// Time that nobody else wants on any of its devices.
void Gangs::fill(Nanoseconds now) {
    for (Gang& gang : gangs_) {
        if (!gang.planned || !gang.wants || gang.capped() || gang.phase != Gang::Phase::kOut || !devices_free(gang))
            continue;
        const bool met = std::any_of(gang.members.begin(), gang.members.end(),
                                     [](const Member& member) { return member.seen.met; });
        Nanoseconds until = std::min(next_start(gang), cycle_end_);
        if (met || until - now < p_.quantum_min) continue;
        Nanoseconds due = 0;
        for (const Entry& entry : table_) {
            if (entry.gang != gang.name || entry.from > until) continue;
            until = std::max(until, entry.until);
            due += entry.due;
        }
        std::erase_if(table_, [&](const Entry& entry) { return entry.gang == gang.name && entry.from <= until; });
        begin(gang, until, static_cast<double>(due), true);
    }
}

// Whether any device heard something new.
bool Gangs::tell(Nanoseconds now) {
    bool news = false;
    const bool more = cycle_end_ > now && std::any_of(gangs_.begin(), gangs_.end(),
                                                      [](const Gang& gang) { return gang.planned && gang.wants; });
    for (size_t i = 0; i < devices_.size(); ++i) {
        std::vector<Arbiter::Planned> planned;
        Reservation reservation;
        Nanoseconds next = more ? cycle_end_ : kNever;
        for (const Gang& gang : gangs_) {
            for (const Member& member : gang.members) {
                if (member.device != i || !gang.planned) continue;
                planned.push_back(
                    {member.seen.group, std::max(gang.share, kLeastShare), catch_up(gang, member, now)});
                if (gang.phase == Gang::Phase::kOut) continue;
                reservation.gang = member.seen.group;
                reservation.slot = gang.slot;
                reservation.over = gang.phase == Gang::Phase::kFinishing;
                if (reservation.over && !gang.hangs && stuck(gang, now)) go_on_for_peers(gang, member, reservation);
                reservation.until = reservation.over ? gang.until + p_.finish : gang.until;
            }
        }
        for (const Entry& entry : table_) {
            const Gang& gang = *find(entry.gang);
            for (const Member& member : gang.members)
                if (member.device == i) next = std::min(next, entry.from);
        }
        if (planned.empty()) reservation = {};
        if (!planned.empty() && reservation.gang == 0) reservation.until = next;
        Device& device = devices_[i];
        if (planned == device.planned && reservation == device.reservation) continue;
        device.planned = planned;
        device.reservation = reservation;
        device.arbiter->reserve(planned, reservation, now);
        news = true;
    }
    return news;
}

void Gangs::find_next(Nanoseconds now) {
    next_ = kNever;
    const auto consider = [&](Nanoseconds at) {
        if (at > now) next_ = std::min(next_, at);
    };
    bool planned = false;
    for (const Gang& gang : gangs_) {
        if (!gang.planned) continue;
        planned |= gang.wants;
        if (gang.phase == Gang::Phase::kIn) consider(gang.until);
        if (gang.phase == Gang::Phase::kIn || drained(gang)) continue;
        if (gang.phase == Gang::Phase::kFinishing) consider(gang.until + (gang.hangs ? p_.slack : p_.finish));
        consider(quiet_from(gang));
        // What a rank had begun to submit as its turn ended is counted a little later.
        if (!gang.hangs && stuck(gang, now))
            consider(now + (gang.phase == Gang::Phase::kFinishing ? p_.slack : p_.finish));
        for (const Member& member : gang.members) consider(member.seen.look_at);
    }
    for (const Entry& entry : table_) consider(entry.from);
    if (planned) consider(cycle_end_);
}

void Gangs::settle(Nanoseconds now) {
    find_members();
    next_ = kNever;
    if (!any()) return;
    for (int round = 0; round < kRounds; ++round) {
        look(now);
        account(now);
        end_slots(now);
        interrupt(now);
        const bool wanted =
            std::any_of(gangs_.begin(), gangs_.end(), [](const Gang& gang) { return gang.planned && gang.claims; });
        if (wanted && (plan_anew_ || now >= cycle_end_)) plan(now);
        start_slots(now);
        fill(now);
        if (!tell(now)) break;
    }
    told_ =
        std::any_of(devices_.begin(), devices_.end(), [](const Device& device) { return !device.planned.empty(); });
    find_next(now);
}

}  // namespace gemlet::arbiter
