// Who has, or still drains, the device, and from when to when each is charged.
//
// A hold is charged from its grant, or from the moment the one before it had drained if that was later, until its own
// work has drained. The end of the drain is first an estimate, which is charged at once; finish() corrects it for
// both sides, also if the holder was overdue and its successor ran beside it.
#pragma once

#include <vector>

#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

struct Client;

struct Hold {
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
    Nanoseconds halved = 0;  // not charged: half of the time with a partner
    Nanoseconds work = 0;    // what the client had completed when it began
    // Terms, as last told to the client.
    Nanoseconds deadline = kNever;
    Nanoseconds window = 0;
    bool contended = false;
    enum class Told : uint8_t { kNothing, kTook, kTerms, kRevoked } told = Told::kNothing;
    bool told_beside = false;
    bool patient = false;
    // The hold it runs beside though their fractions do not fit; 0: none. Since when, and the work at that time.
    uint64_t partner = 0;
    std::vector<uint64_t> partners = {};  // it had so far
    GroupId partner_group = 0;            // of the last
    bool was_left = false;                // by one that had nothing more to do
    Nanoseconds together_since = 0, together_work = 0;
    bool measuring = false;  // the two above hold: the client said what it had done after it was told of its partner
    Nanoseconds latest = kNever;  // it was let in before its turn, for as long as it is in nobody's way
    bool overdue = false;         // did not stop in time, so it no longer keeps others waiting

    // Turns after this one that are over, but may have been charged for time in which this one still drained.
    struct Later {
        Group* group;
        Nanoseconds from, end;
    };
    std::vector<Later> later = {};

    bool runs() const { return stopped == kNever; }
    bool occupies() const { return runs() && !overdue; }
    Turn turn() const { return {group, granted, deadline}; }
};

class Holds {
  public:
    explicit Holds(Policy& policy) : policy_(policy) {}

    std::vector<Hold>& all() { return holds_; }
    const std::vector<Hold>& all() const { return holds_; }

    Hold& start(Client* client, Group* group, Nanoseconds now);
    Hold* running(const Client* client);
    Hold* running(uint64_t serial);
    bool has_partner(const Hold& hold) const;
    Hold* draining(const Client* client);                      // the oldest
    Hold* newest(const Client* client);                        // draining or not
    void stop(Hold& hold, Nanoseconds tail, Nanoseconds now);  // may move or forget holds: `hold` is invalid then
    void finish(Hold& hold, Nanoseconds at, Nanoseconds now);  // its work was complete at `at`; forgets the hold
    void forget(const Group* group);                           // the group is about to go
    void charge(Nanoseconds now);                              // everyone, up to now

    Nanoseconds due(const Hold& hold, Nanoseconds now) const;  // what it owes in all, whether charged by now or not

    bool followed(const Hold& hold) const;  // by one that had to wait for its drain

    double occupied() const;                              // fraction of the multiprocessors
    uint64_t next_serial() const { return serial_ + 1; }  // of the hold that starts next
    static bool fit(const Hold& a, const Hold& b) { return a.sm + b.sm <= 1.0 + 1e-9; }

  private:
    void charge(Hold& hold, Nanoseconds now);
    void find_starts(Nanoseconds now);
    Nanoseconds halved(const Hold& hold, Nanoseconds now) const;  // since the last charge

    Policy& policy_;
    Nanoseconds now_ = 0;
    std::vector<Hold> holds_;  // in the order of their grants
    uint64_t serial_ = 0;
};

}  // namespace gemlet::arbiter
