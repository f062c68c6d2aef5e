// Who has, or still drains, the device, and from when to when each is charged.
//
// Of the time in company each pays the part that it would have in turns. With equal parts, who was promised most of
// the device would fall behind what it was promised all the while, and have the device for as long afterwards.
//
// A hold is charged from its grant, or from the moment the one before it had drained if that was later, until its own
// work has drained. The end of the drain is first an estimate, which is charged at once; finish() corrects it for
// both sides, also if the holder was overdue and its successor ran beside it.
#pragma once

#include <vector>

#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

struct Client;

// A holder that nobody waited for says every few milliseconds what it has done, one in company ten times in this.
inline constexpr Nanoseconds kFreshNews = 1'000'000;

// Who is entitled to nothing but what others leave pays something all the same.
inline constexpr double kLeastPart = 0.01;

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
    Nanoseconds spared = 0;       // not charged: of the time in company each pays its part, as in turns
    Nanoseconds accompanied = 0;  // time in company
    double part = 1.0;            // that it paid of it when it stopped
    Nanoseconds work = 0;         // what the client had completed when it began
    // Terms, as last told to the client.
    Nanoseconds deadline = kNever;
    Nanoseconds window = 0;
    bool contended = false;
    enum class Told : uint8_t { kNothing, kTook, kTerms, kRevoked } told = Told::kNothing;
    bool told_beside = false;
    bool patient = false;
    // Those of one company run at a time though their fractions do not fit. 0: none. Since when as many as now, and
    // the work at that time.
    uint64_t company = 0;
    std::vector<uint64_t> companies = {};  // it was in so far
    GroupId partner_group = 0;             // of the last that was its whole company
    bool crowd = false;                    // it was in a company of more than two
    bool was_left = false;                 // by one that had nothing more to do
    Nanoseconds together_since = 0, together_work = 0;
    bool measuring = false;  // the two above hold: the client said what it had done after it was told of its company
    Nanoseconds latest = kNever;  // it was let in before its turn, for as long as it is in nobody's way
    bool overdue = false;         // did not stop in time, so it no longer keeps others waiting

    // Turns after this one that are over, but may have been charged for time in which this one still drained.
    struct Later {
        Group* group;
        Nanoseconds from, end;
        double part;  // of that time that it paid
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
    size_t company(const Hold& hold) const;                    // how many run in it; 1 without one
    void join(Hold& hold, Hold& other);                        // the company of `other`, a new one if it has none
    Hold* draining(const Client* client);                      // the oldest
    Hold* newest(const Client* client);                        // draining or not
    void stop(Hold& hold, Nanoseconds tail, Nanoseconds now);  // may move or forget holds: `hold` is invalid then
    void finish(Hold& hold, Nanoseconds at, Nanoseconds now);  // its work was complete at `at`; forgets the hold
    void leave(Hold& hold, Nanoseconds now);                   // its company
    void forget(const Group* group);                           // the group is about to go
    void charge(Nanoseconds now);                              // everyone, up to now

    Nanoseconds due(const Hold& hold, Nanoseconds now) const;  // what it owes in all, whether charged by now or not

    bool followed(const Hold& hold) const;  // by one that had to wait for its drain

    double part(const Hold& hold) const;                  // of the time now that it pays; 1 without company
    double weight(const Group& group) const;              // it pays in company in proportion to this
    double occupied() const;                              // fraction of the multiprocessors
    uint64_t next_serial() const { return serial_ + 1; }  // of the hold that starts next
    static bool fit(const Hold& a, const Hold& b) { return a.sm + b.sm <= 1.0 + 1e-9; }

  private:
    void charge(Hold& hold, Nanoseconds now);
    void find_starts();
    void move_start(Hold& hold, Nanoseconds from);
    void share_tail(Hold& hold, Nanoseconds tail);
    Nanoseconds since_charge(const Hold& hold, Nanoseconds now) const;
    Nanoseconds spared(const Hold& hold, Nanoseconds now) const;  // since the last charge

    Policy& policy_;
    Nanoseconds now_ = 0;
    std::vector<Hold> holds_;  // in the order of their grants
    uint64_t serial_ = 0;
};

}  // namespace gemlet::arbiter
