#include "arbiter/holds.hpp"

#include <algorithm>
#include <utility>

#include "arbiter/client.hpp"

namespace gemlet::arbiter {
namespace {

// Whether `next` had the device for itself only when `before` had drained: their slices do not fit side by side.
bool follows(const Hold& next, const Hold& before) {
    const auto& all = before.companies;
    const bool together = std::any_of(next.companies.begin(), next.companies.end(),
                                      [&](uint64_t c) { return std::find(all.begin(), all.end(), c) != all.end(); });
    return before.serial < next.serial && !before.runs() && !Holds::fit(before, next) && !together;
}

}  // namespace

Hold& Holds::start(Client* client, Group* group, Nanoseconds now) {
    holds_.push_back({.serial = ++serial_,
                      .client = client,
                      .group = group,
                      .sm = client->sm,
                      .granted = now,
                      .from = now,
                      .not_before = now,
                      .work = client->work});
    find_starts();
    return holds_.back();
}

Hold* Holds::running(const Client* client) {
    for (Hold& hold : holds_) {
        if (hold.client == client && hold.runs()) return &hold;
    }
    return nullptr;
}

Hold* Holds::running(uint64_t serial) {
    for (Hold& hold : holds_) {
        if (serial && hold.serial == serial && hold.runs()) return &hold;
    }
    return nullptr;
}

Hold* Holds::draining(const Client* client) {
    for (Hold& hold : holds_) {
        if (hold.client == client && !hold.runs()) return &hold;
    }
    return nullptr;
}

Hold* Holds::newest(const Client* client) {
    const auto found =
        std::find_if(holds_.rbegin(), holds_.rend(), [&](auto& hold) { return hold.client == client; });
    return found == holds_.rend() ? nullptr : &*found;
}

void Holds::stop(Hold& hold, Nanoseconds tail, Nanoseconds now) {
    hold.part = part(hold);
    leave(hold, now);
    hold.stopped = now;
    hold.end = now + tail;
    share_tail(hold, tail);
    find_starts();
    charge(now);
    // Who never reports a drain is believed its estimates. Two may be open: the one before a quick second grant.
    size_t open = 0;
    for (const Hold& other : holds_) open += other.client == hold.client && !other.runs();
    if (open > 2) finish(*draining(hold.client), draining(hold.client)->end, now);
}

void Holds::finish(Hold& hold, Nanoseconds at, Nanoseconds now) {
    const Nanoseconds estimated = std::exchange(hold.end, at);
    share_tail(hold, at - estimated);
    charge(hold, now);
    for (Hold& other : holds_) {
        if (follows(other, hold)) other.not_before = std::max(other.not_before, hold.end);
        if (!follows(hold, other) || hold.end <= hold.from) continue;
        const double part = static_cast<double>(hold.charged) / static_cast<double>(hold.end - hold.from);
        other.later.push_back({hold.group, hold.from, hold.end, part});
    }
    for (const Hold::Later& later : hold.later) {
        const Nanoseconds time = std::min(later.end, at) - std::max(later.from, estimated);
        if (time <= 0) continue;
        const auto wrong = static_cast<Nanoseconds>(later.part * static_cast<double>(time));
        later.group->used -= wrong;
        policy_.charge(*later.group, -wrong, now);
    }
    holds_.erase(holds_.begin() + (&hold - holds_.data()));
    find_starts();
    charge(now);
}

void Holds::forget(const Group* group) {
    for (Hold& hold : holds_)
        std::erase_if(hold.later, [&](const Hold::Later& later) { return later.group == group; });
}

void Holds::find_starts() {
    for (Hold& hold : holds_) {
        Nanoseconds from = hold.not_before;
        for (const Hold& before : holds_) {
            if (follows(hold, before)) from = std::max(from, before.end);
        }
        if (from != hold.from) move_start(hold, from);
    }
}

// Later or earlier than was thought. What it is charged for and was spared since changes with it.
void Holds::move_start(Hold& hold, Nanoseconds from) {
    const Nanoseconds until = hold.runs() ? now_ : std::min(now_, hold.stopped);
    const auto before = static_cast<double>(until - hold.from);
    const double after = static_cast<double>(std::max<Nanoseconds>(0, until - from));
    hold.from = from;
    const auto rescale = [&](Nanoseconds& sum, double part) {
        const double whole = before > 0.0 ? static_cast<double>(sum) / before : part;
        sum = static_cast<Nanoseconds>(whole * after);
    };
    const double part = this->part(hold);
    rescale(hold.spared, 1.0 - part);
    rescale(hold.accompanied, part < 1.0 ? 1.0 : 0.0);
}

// What is in flight when one leaves runs beside those who stay, and each pays its part of that time as before.
void Holds::share_tail(Hold& hold, Nanoseconds tail) {
    if (hold.part >= 1.0) return;
    const auto length = static_cast<double>(tail);
    hold.spared += static_cast<Nanoseconds>(length * (1.0 - hold.part));
    for (Hold& other : holds_) {
        const bool stays =
            other.runs() && !other.companies.empty() && other.companies.back() == hold.companies.back();
        if (stays) other.spared += static_cast<Nanoseconds>(length * hold.part * part(other));
    }
}

double Holds::part(const Hold& hold) const {
    if (!hold.company || !hold.runs()) return 1.0;
    double all = 0.0;
    for (const Hold& h : holds_) {
        if (h.runs() && h.company == hold.company) all += weight(*h.group);
    }
    return weight(*hold.group) / all;
}

double Holds::weight(const Group& group) const {
    return std::max(policy_.target(group), kLeastPart);
}

void Holds::charge(Hold& hold, Nanoseconds now) {
    // What is in flight after a stop is paid for at once, or whoever submits much ahead would get the token again
    // before it has been charged.
    const Nanoseconds owed = due(hold, now), amount = owed - hold.charged;
    if (amount == 0) return;
    hold.charged = owed;
    hold.group->used += amount;
    if (hold.client) hold.client->used += amount;
    policy_.charge(*hold.group, amount, now);
}

Nanoseconds Holds::since_charge(const Hold& hold, Nanoseconds now) const {
    return std::max<Nanoseconds>(0, now - std::max(now_, hold.from));
}

Nanoseconds Holds::spared(const Hold& hold, Nanoseconds now) const {
    return static_cast<Nanoseconds>((1.0 - part(hold)) * static_cast<double>(since_charge(hold, now)));
}

Nanoseconds Holds::due(const Hold& hold, Nanoseconds now) const {
    const Nanoseconds until = hold.runs() ? now : hold.end;
    return std::max<Nanoseconds>(0, until - hold.from - hold.spared - spared(hold, now));
}

size_t Holds::company(const Hold& hold) const {
    if (!hold.company) return 1;
    return static_cast<size_t>(std::count_if(holds_.begin(), holds_.end(),
                                             [&](const Hold& h) { return h.runs() && h.company == hold.company; }));
}

void Holds::join(Hold& hold, Hold& other) {
    if (!other.company) other.company = hold.serial;
    hold.company = other.company;
    for (Hold* one : {&hold, &other})
        if (one->companies.empty() || one->companies.back() != one->company) one->companies.push_back(one->company);
}

// The others are measured from then on as so many as are left; who is left alone has no company any more.
void Holds::leave(Hold& hold, Nanoseconds now) {
    const uint64_t left = std::exchange(hold.company, 0);
    if (!left) return;
    for (Hold& other : holds_) {
        if (!other.runs() || other.company != left) continue;
        other.measuring = false;
        other.together_since = now + kFreshNews;
        if (company(other) == 1) other.company = 0;
    }
}

void Holds::charge(Nanoseconds now) {
    for (Hold& hold : holds_) {
        hold.spared += spared(hold, now);
        if (hold.runs() && company(hold) > 1) hold.accompanied += since_charge(hold, now);
    }
    now_ = std::max(now_, now);
    for (Hold& hold : holds_) charge(hold, now);
}

bool Holds::followed(const Hold& hold) const {
    return std::any_of(holds_.begin(), holds_.end(), [&](const Hold& next) { return follows(next, hold); });
}

double Holds::occupied() const {
    double sum = 0.0;
    for (const Hold& hold : holds_) {
        if (hold.occupies()) sum += hold.sm;
    }
    return sum;
}

}  // namespace gemlet::arbiter
