// Which gangs run when, on all their devices at once: slots of one cycle. Pure arithmetic.
//
// Gangs that have a device in common never overlap. If they cannot all have what they wish, because they cross, what
// each wishes beyond its minimum is scaled down by the same factor, and the minima only if even these do not fit.
#pragma once

#include <vector>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

// What a gang wishes of a cycle, as parts of it.
struct Wish {
    std::vector<size_t> devices;
    double share = 0.0;     // `least` or more
    double least = 0.0;     // comes before what others wish beyond theirs
    bool may_grow = false;  // it may have what nobody else wants
};

struct Slot {
    size_t wish;              // its index
    Nanoseconds from, until;  // from the cycle's beginning on
    Nanoseconds due;          // how long it is before it grows
};

// `free_from`: when each device is free, 0 or more. Slots begin in the order of the wishes where they can; a wish
// that got less than `shortest` has none. Ordered by their beginning.
std::vector<Slot> timetable(const std::vector<Wish>& wishes, const std::vector<Nanoseconds>& free_from,
                            Nanoseconds cycle, Nanoseconds shortest);

}  // namespace gemlet::arbiter
