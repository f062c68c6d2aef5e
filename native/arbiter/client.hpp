// What the arbiter knows of one client and of the members of a group.
#pragma once

#include <vector>

#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

struct Members;

struct Client {
    ClientId id;
    Members* group;
    bool mps = false;
    double sm = 1.0;  // fixed when it came: MPS gives a context its part when it is made
    bool waiting = false;
    Nanoseconds since = 0;      // waits since
    Nanoseconds used = 0;       // orders the clients of one group: device time, with idle time not saved up
    Nanoseconds work = 0;       // completed, as it last said
    Looks looks{}, seen{};      // at its queue, as it last said, and when `starved` was last reckoned
    double starved = 0.0;       // part of its looks that found nothing queued
    unsigned turns = 0;         // that ended in the middle of its work
    bool by_right = false;      // its parked token stays while others of a lower class hold theirs
    uint64_t unparked_for = 0;  // serial of the hold for which its parked token was taken away, and when
    Nanoseconds unparked_at = 0;
};

struct Members : Group {
    std::vector<Client*> members;
    bool wanted = false;        // as of the last demand()
    bool at_maximum = false;    // waits, and its maximum is why; as of the last event
    Nanoseconds throttled = 0;  // how long that was so in all
};

}  // namespace gemlet::arbiter
