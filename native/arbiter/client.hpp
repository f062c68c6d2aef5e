// What the arbiter knows of one client and of the members of a group.
#pragma once

#include <vector>

#include "arbiter/observation.hpp"
#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

struct Lease;
struct Members;

struct Standing {
    Why why = Why::kShares;
    double lag = 0.0;               // ns that it is behind its promise
    bool behind = false;            // ... by more than is normal
    Nanoseconds since = 0;          // exclusive since
    Nanoseconds backoff = 0;        // it stays so for at least this long
    Nanoseconds released = kNever;  // when it was last released; kNever: not yet
    Nanoseconds spared = kNever;    // when others last began to take turns because it was behind
    bool misjudged = false;         // ... because it should never have taken turns, which is no trial
    // Of ranks: what it had completed when it last became exclusive or was released, how much a ns while it took
    // turns, and whether it completed less when it was released after that.
    Nanoseconds completed = 0;
    double pace = 0.0;
    bool failed = false;
    // It was behind when it was last released: until then less shows that it is so again, ...
    Nanoseconds watched_until = 0;
    bool refuted = false;      // ... and it was, so that there was room for all was not true
    Nanoseconds evidence = 0;  // it must have looked busy for this long before it takes turns with its like
    bool at_ease = false;      // its host hardly waits, so its promise is not near danger
    double samples = 0.0;      // looks at its queues while it had the device to itself, since it is exclusive
    double wasted = 0.0;       // ns that its pauses then left the device idle, less what turns save

    bool exclusive() const { return why != Why::kShares; }
    // It takes turns with its like only.
    bool contends() const { return why == Why::kBothBusy; }
    void ran_alone(const Rates& rates);
    // It was released a moment ago: whether that was right must show soon.
    bool on_trial(Nanoseconds now) const { return released != kNever && !misjudged && now - released < kTrial; }
    static constexpr Nanoseconds kTrial = 50'000'000;
};

struct Client {
    ClientId id = 0;
    Members* group = nullptr;
    bool mps = false;
    double sm = 1.0;  // fixed when it came: MPS gives a context its part when it is made
    bool waiting = false;
    Nanoseconds since = 0;      // waits since
    Nanoseconds came = kNever;  // when it first asked for the device
    Nanoseconds used = 0;       // orders the clients of one group: device time, with idle time not saved up
    // Since Contention last asked: device time charged, time that it ran, and that it waited for its last lease.
    Nanoseconds charged = 0, ran = 0, waited = 0;
    Nanoseconds active_at = 0;  // when it last ran or waited, if it does not now
    bool active = false;        // runs or waits, and ...
    bool lately = false;        // ... or did of late; as of the last attend()
    bool at_rest = true;        // nothing of it drains; as of the last attend()
    Observation seen;
    Standing standing;
    uint64_t left_slot = 0;     // the last slot of its gang whose end it stopped for
    double speed = -1.0;        // against alone, averaged over the last second or so; below 0: unknown
    Lease* lease = nullptr;     // that runs; valid in observe() only
    bool by_right = false;      // its parked token stays while others of a lower class hold theirs
    uint64_t unparked_for = 0;  // serial of the lease for which its parked token was taken away, and when
    Nanoseconds unparked_at = 0;

    bool exclusive() const { return standing.exclusive(); }
    // Why it does not share: one whose gang has slots takes turns with its like on all devices, or on none.
    Why why() const;
};

struct Members : Group {
    std::vector<Client*> members;
    Nanoseconds removed = kNever;  // since then only what it used counts
    Nanoseconds before = 0;        // used until it was removed last; it is another one since
    // Where a client starts when it comes, or comes back: level with the least used of the present ones. Never less
    // than before, so a client has no debt for what it used while no other was there.
    Nanoseconds level = 0;
    bool apart = false;         // one of its clients does not run beside those that share
    size_t leases = 0;          // that occupy the device; as of the last set_rates()
    size_t active = 0;          // members that run or wait, or did of late; as of the last observe()
    bool wanted = false;        // as of the last demand()
    Ranks peers;                // its clients on other devices, if they are a gang
    Nanoseconds moved = 0;      // when a turn of its clients stopped or drained last
    Attendance attendance;      // as of the last attend()
    uint32_t catch_up = 0;      // how much each of them may submit in the slot of others
    bool at_maximum = false;    // waits, and its maximum is why; as of the last event
    Nanoseconds throttled = 0;  // how long that was so in all
};

inline Why Client::why() const {
    return standing.why == Why::kShares && group->planned > 0.0 ? Why::kBothBusy : standing.why;
}

}  // namespace gemlet::arbiter
