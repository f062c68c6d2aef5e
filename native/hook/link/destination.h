// Which daemon this process joins, and as what.
#pragma once

#include <cstddef>

#include "wire.h"

namespace gemlet::hook {

// Read once, at the program's start, or at the first use where there was nothing at the start.
struct Destination {
    char socket[108];  // empty: this process is not managed
    char group[wire::kGroupNameBytes];
    bool strict;
    bool simulated;       // the daemon is the simulated machine's, which hints must say
    unsigned patience_s;  // how long calls wait for a daemon where there is none
};
const Destination& destination();
// What follows where no daemon governs, for messages.
const char* consequence();

// At most `size` - 1 characters of `from`, or none if it is null, and zeros.
void copy_name(char* to, size_t size, const char* from);

}  // namespace gemlet::hook
