// Which daemon this process joins, and as what.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire.h"

namespace gemlet::hook {

// Read once, at the program's start, or at the first use where there was nothing at the start.
struct Destination {
    char socket[108];  // empty: this process is not managed
    char group[wire::kGroupNameBytes];
    bool strict;
    bool quiet;           // it says nothing
    bool simulated;       // the daemon is the simulated machine's, which hints must say
    unsigned patience_s;  // how long calls wait for a daemon where there is none
    // What the launcher was granted for the group (GEMLET_LIMITS), for devices of which no daemon says more.
    uint64_t memory_limit;  // bytes a device; wire::kNoLimit: none, or it did not say
    uint32_t agreed;        // wire::agreed_word() of its part of time; 0: likewise
};
const Destination& destination();
bool is_started_in_group();  // does not count as the first use
bool has_limits(const Destination& destination);
// What follows where no daemon governs, for messages.
const char* consequence();
// What each command in a hint needs that is to reach this daemon.
inline const char* simulate_option() {
    return destination().simulated ? " --simulate" : "";
}

// At most `size` - 1 characters of `from`, or none if it is null, and zeros.
void copy_name(char* to, size_t size, const char* from);

}  // namespace gemlet::hook
