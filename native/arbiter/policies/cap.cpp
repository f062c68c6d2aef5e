#include "arbiter/policies/cap.hpp"

#include <algorithm>
#include <cmath>

namespace gemlet::arbiter {

void Cap::set(double max, Nanoseconds block) {
    // A thousandth of a millisecond a second: the pause after a block of less would be longer than the clock counts.
    constexpr double kLeast = 1e-6;
    max_ = max > 0.0 ? std::max(max, kLeast) : 0.0;
    // A maximum so small that a second of it is less than a block runs in blocks of that.
    block_ = std::min(static_cast<double>(block), max_ * kSecond);
}

void Cap::reset(double max, Nanoseconds block, Nanoseconds now) {
    set(max, block);
    balance_ = block_;
    accrued_to_ = now;
    slots_.fill(0);
    slot_ = now / kSlot;
    recent_ = 0;
}

void Cap::change(double max, Nanoseconds block, Nanoseconds now) {
    if (!binds() || max >= 1.0) return reset(max, block, now);  // nothing was counted, or nothing will be
    accrue(wants_, now);
    slide(now);
    const double before = max_;
    set(max, block);
    // What it ran too long counts as if the new maximum had been in force: to raise it must free a group from the
    // debt of a long kernel. Lowered and raised again, the debt is what it was.
    balance_ = balance_ < 0.0 ? balance_ * (1.0 - max_) / (1.0 - before) : std::min(balance_, block_);
    if (max_ >= before) return;
    // It kept to the one before, so it need not stand still until that is over. The bucket binds from now on.
    recent_ = 0;
    for (Nanoseconds& slot : slots_) {
        slot = static_cast<Nanoseconds>(static_cast<double>(slot) * max_ / before);
        recent_ += slot;
    }
}

void Cap::accrue(bool wants, Nanoseconds now) {
    const double most = wants_ ? std::max(block_, max_ * kSecond) : block_;
    const double gained = max_ * static_cast<double>(now - accrued_to_);
    balance_ = std::max(balance_, std::min(balance_ + gained, most));
    accrued_to_ = now;
    if (wants_ && !wants) balance_ = std::min(balance_, block_);
    wants_ = wants;
}

void Cap::slide(Nanoseconds now) {
    const Nanoseconds current = now / kSlot;
    if (current - slot_ >= static_cast<Nanoseconds>(kSlots)) {
        slots_.fill(0);
        recent_ = 0;
        slot_ = current;
    }
    while (slot_ < current) {
        ++slot_;
        Nanoseconds& oldest = slots_[slot_ % kSlots];
        recent_ -= oldest;
        oldest = 0;
    }
}

void Cap::use(Nanoseconds amount, Nanoseconds now) {
    balance_ -= static_cast<double>(amount);
    slide(now);
    recent_ += amount;
    // A turn is charged in few pieces, but it used the time before `now` evenly.
    Nanoseconds slot = slot_, until = now;
    while (amount > 0 && slot > 0 && slot_ - slot < kSlotsBefore) {
        const Nanoseconds part = std::min(amount, until - slot * kSlot);
        slots_[slot % kSlots] += part;
        amount -= part;
        until = slot * kSlot;
        --slot;
    }
    // What was charged by an estimate and was not used: it must not count for longer than that does.
    for (slot = amount < 0 ? slot_ : slot; amount < 0 && slot > 0 && slot_ - slot < kSlotsBefore; --slot) {
        const Nanoseconds part = std::clamp<Nanoseconds>(slots_[slot % kSlots], 0, -amount);
        slots_[slot % kSlots] -= part;
        amount += part;
    }
    slots_[slot % kSlots] += amount;  // what does not fit into a second
}

double Cap::room(Nanoseconds now) {
    slide(now);
    // One block above the bucket's own, or the two would bind in turns when a group saturates its maximum.
    return max_ * (kSecond + kSlot) + 2 * block_ - static_cast<double>(recent_);
}

bool Cap::ready(Nanoseconds now) {
    if (!binds()) return true;
    accrue(wants_, now);
    // A nanosecond of slack: ready_at() rounds, and must not answer with the same moment for ever.
    return max_ > 0.0 && balance_ + 1.0 >= block_ && room(now) + 1.0 >= block_;
}

Nanoseconds Cap::ready_at(Nanoseconds now) {
    if (max_ <= 0.0) return kNever;
    if (ready(now)) return now;
    Nanoseconds at = now;
    constexpr double kLongest = 1e18;  // a kernel of hours, of the smallest maximum, would be paid for in centuries
    if (balance_ < block_) at += static_cast<Nanoseconds>(std::min(std::ceil((block_ - balance_) / max_), kLongest));
    if (room(now) < block_) at = std::max(at, (slot_ + 1) * kSlot);
    // One of its programs may run meanwhile and use what the bucket gains: not at every nanosecond.
    constexpr Nanoseconds kShortest = 100'000;
    return std::max(at, now + kShortest);
}

Nanoseconds Cap::runway(Nanoseconds now) {
    if (!binds()) return kNever;
    accrue(wants_, now);
    // The bucket goes on filling during the run, hence the division. In the sliding second old use leaves meanwhile.
    const double wanted = balance_ / (1.0 - max_);
    double run = room(now);
    for (Nanoseconds slot = slot_ + 1; run < wanted && slot < slot_ + static_cast<Nanoseconds>(kSlots); ++slot) {
        if (run < static_cast<double>(slot * kSlot - now)) break;  // used up before this one leaves
        // A correction may leave, too: what was allowed until then is.
        run = std::max(run + static_cast<double>(slots_[slot % kSlots]), static_cast<double>(slot * kSlot - now));
    }
    return static_cast<Nanoseconds>(std::clamp(run, 0.0, std::max(wanted, 0.0)));
}

}  // namespace gemlet::arbiter
