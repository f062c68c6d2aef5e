// The clients that have the device or still drain, and from when to when each is charged.
//
// Charging begins at the grant or when the lease before it had drained, whichever is later, and ends when its own
// work has drained. That end is estimated first, and charged at once; finish() corrects the charges of both leases,
// even if the next client began beside an overdue holder.
//
// A client that does not stop in time, or does not drain, lingers. It may have kernels that take long: the hardware
// slices these with what the others do, so all pay for equal parts. Or its host has no time for it, or the others
// pause: as far as these were seen to do more than their slices, or less, it pays for less, or more.
//
// When some that co-ran must take turns, all of them still have work on the device, and the hardware slices it: until
// those that stop have drained, each pays for an equal part. What was before is charged by then.
//
// Who has the device to itself pays for all of the time, pauses included: nobody else could use them. Of the time
// that several co-run, each pays its `rate`, the part of the device that it was seen to use.
#pragma once

#include <algorithm>
#include <vector>

#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

struct Client;

inline constexpr double kFull = 1.0 + 1e-9;  // all multiprocessors

// Whether two clients may run at the same time although both need all multiprocessors. Two that keep the device busy
// contend with each other, not with those that leave it idle most of the time.
constexpr bool compatible(Why a, Why b) {
    const auto open = [](Why why) { return why == Why::kShares || why == Why::kBothBusy; };
    return open(a) && open(b) && (a == Why::kShares || b == Why::kShares);
}

// The terms of a lease that a client is told, besides the deadline.
struct Conditions {
    Nanoseconds window = 0, idle = 0, idle_most = 0, poll = 0;
    bool shared = false;
    uint32_t submissions = 0;
    bool operator==(const Conditions&) const = default;
};

struct Lease {
    uint64_t serial;
    Client* client;
    Group* group;
    double sm;  // fraction of the multiprocessors
    Nanoseconds granted;
    // Charging.
    Nanoseconds from;              // charged from here ...
    Nanoseconds not_before;        // ... as far as predecessors that are gone are concerned
    Nanoseconds stopped = kNever;  // kNever: runs
    Nanoseconds end = kNever;      // when its work drained, or is thought to drain
    Nanoseconds charged = 0;
    double rate = 1.0;       // part of the time that it is charged for; changes right after a charge()
    Nanoseconds spared = 0;  // of its time so far it is not charged for
    // Co-running.
    Why why = Why::kShares;    // its client does not share the device
    bool slotted = false;      // it ran in a slot of its gang, whose other clients here ran beside it
    uint64_t slot = 0;         // ... that ends it, and its number
    uint32_t submissions = 0;  // it goes on after its slot, for so many that its peers wait for ...
    bool catches_up = false;   // ... in the slot of others: in nobody's way, and nobody is in its way
    bool sliced = false;       // it co-ran with some that must stop now, or must stop itself
    bool accompanied = false;  // another ran at the same time since it was last observed
    Nanoseconds observed = 0;  // until then
    // Terms, as last sent to the client.
    enum class Sent : uint8_t { kNothing, kTook, kTerms, kRevoked } sent = Sent::kNothing;
    Nanoseconds deadline = kNever;
    Conditions conditions;
    Nanoseconds latest = kNever;  // it was let in before its turn, for as long as it is in nobody's way
    bool overdue = false;         // did not stop in time, so it no longer keeps others waiting
    // Since it lingers, for which it is charged beside what it is until `end`.
    Nanoseconds lingers = kNever;
    double slice = 0.0;        // part of the time since the last charge
    Nanoseconds lingered = 0;  // so much
    Nanoseconds presumed = 0;  // ... or this, if that is more, until it has drained
    Nanoseconds others = 0;    // work that others had done by then

    // Turns after this one that are over, but may have been charged for time in which this one still drained.
    struct Later {
        Group* group;
        Nanoseconds from, end;
        double part;  // of that time that was charged
    };
    std::vector<Later> later = {};

    bool runs() const { return stopped == kNever; }
    bool is_lingering() const { return lingers != kNever; }
    bool occupies() const { return runs() && !overdue; }
    bool in_the_way() const { return occupies() && !catches_up; }
    // When its work is over, as far as is known without its word; it has stopped.
    Nanoseconds ends(Nanoseconds now) const { return is_lingering() ? now : std::min(end, now); }
    Turn turn() const { return {group, granted, deadline}; }
};

class Leases {
  public:
    explicit Leases(Policy& policy) : policy_(policy) {}

    std::vector<Lease>& all() { return leases_; }
    const std::vector<Lease>& all() const { return leases_; }

    Lease& start(Client* client, Group* group, Nanoseconds now);
    Lease* running(const Client* client);
    Lease* draining(const Client* client);                       // the oldest
    Lease* newest(const Client* client);                         // draining or not
    void stop(Lease& lease, Nanoseconds tail, Nanoseconds now);  // may move or forget leases: `lease` is invalid then
    void linger(Lease& lease, Nanoseconds work_of_others, Nanoseconds now);  // it has not stopped, or drained
    void forgive(Lease& lease, Nanoseconds since, Nanoseconds now);  // one that lingered used nothing since then
    void finish(Lease& lease, Nanoseconds at, Nanoseconds now);  // its work was complete at `at`; forgets the lease
    void forget(const Group* group);                             // the group is about to go
    void charge(Nanoseconds now);                                // everyone, up to now
    void slice(Lease& lease, Nanoseconds now);  // from now on beside others that stop, or stops itself

    Nanoseconds due(const Lease& lease, Nanoseconds now) const;  // what it owes in all, whether charged by now or not

    // Its client runs again, in another lease.
    bool runs_again(const Lease& lease) const {
        return std::any_of(leases_.begin(), leases_.end(), [&](const Lease& other) {
            return &other != &lease && other.client == lease.client && other.runs();
        });
    }
    bool followed(const Lease& lease) const;  // by one that had to wait for its drain

    double occupied() const;                              // fraction of the multiprocessors
    uint64_t next_serial() const { return serial_ + 1; }  // of the lease that starts next
    // Whether the two may run at the same time.
    static bool co_run(const Lease& a, const Lease& b) {
        return compatible(a.why, b.why) || a.sm + b.sm <= kFull || a.catches_up || b.catches_up ||
               (a.group == b.group && a.slotted && b.slotted);
    }

  private:
    void charge(Lease& lease, Nanoseconds now);
    void find_starts();
    void move_start(Lease& lease, Nanoseconds from);
    void move_end(Lease& lease, Nanoseconds end);
    Nanoseconds since_charge(const Lease& lease, Nanoseconds now) const;
    Nanoseconds spared(const Lease& lease, Nanoseconds now) const;    // since the last charge
    Nanoseconds lingered(const Lease& lease, Nanoseconds now) const;  // ... of the same, what it is charged for that

    Policy& policy_;
    Nanoseconds now_ = 0;
    std::vector<Lease> leases_;           // in the order of their grants
    std::vector<const Lease*> stopping_;  // scratch, kept for its memory
    uint64_t serial_ = 0;
};

}  // namespace gemlet::arbiter
