// Decides which clients share the device freely and which take turns.
//
// Clients co-run until a promise is in danger. Then those that are ahead and keep the device busy become exclusive:
// they run when nobody else does. The others go on sharing, so a device alternates between the exclusive ones, one at
// a time, and all the rest together.
//
// A promise is in danger when a client has lost more than `lag` against it beside others: promised is the group's
// target of the policy, a client's part of it, in speed against alone. A client of the class latency is promised that
// its requests take no longer than `slowdown` says, as long as the policy lets it go first.
//
// Two that always have work queued and wait for it are in each other's way by definition, where the hardware can only
// switch between them. Under MPS they may well fit; that needs their speed alone, so they take turns until it is
// known.
//
// What was decided is taken back as soon as the parties together no longer need more than the device, or on trial
// after a time that doubles whenever the trial shows the same danger again. Pure: no clock, no I/O.
#pragma once

#include <algorithm>
#include <vector>

#include "arbiter/client.hpp"
#include "arbiter/leases.hpp"

namespace gemlet::arbiter {

// One client that runs, waits, or did so a moment ago.
struct Party {
    Client* client;
    const Lease* lease;  // null: does not run now
    Rates rates;         // since the last time, if it runs
    bool beside;         // others ran meanwhile
    double target;       // part of the device that the policy grants it
    bool waits;          // for the device, and no maximum of its own is why
    bool in_slots;       // of its gang: what it has is not decided on this device alone
    bool goes_first;     // class latency, and the policy lets it interrupt the others
    double age = 0.0;    // ns since its lease began
    double held = 0.0;   // part of the device that it is guaranteed while its maximum is why it waits
    Ranks peers = {};    // of its gang, on other devices

    // A rank's device is needed for no longer than that of the rank that needs its own least: the rest is waiting.
    double duty() const { return std::min(client->seen.duty(), peers.duty); }
};

class Contention {
  public:
    explicit Contention(const Parameters& parameters) : p_(parameters) {}

    // Whether anybody became exclusive, or no longer is.
    bool judge(std::vector<Party>& parties, Nanoseconds now);
    Nanoseconds judged_at() const { return judged_at_; }
    // Whether who comes takes turns at first: others that had just come kept somebody from what is promised.
    bool presumes(Nanoseconds now) const { return now < presumes_until_; }
    // The client that was furthest behind when a client just became exclusive: it goes first. Null if nobody was.
    const Client* furthest_behind() const { return furthest_behind_; }

  private:
    void observe(std::vector<Party>& parties, Nanoseconds now);
    bool engage(std::vector<Party>& parties, Nanoseconds now);
    bool release(std::vector<Party>& parties, Nanoseconds now) const;
    bool slices_would_not_do(const std::vector<Party>& parties) const;
    void presume(Nanoseconds now);
    void make_exclusive(Party& party, Why why, Nanoseconds now) const;
    void make_shared(Client& client, Nanoseconds now) const;
    void reconsider(Standing& standing, Nanoseconds now) const;
    double promised(const Party& party) const;
    bool in_turns(const Party& party) const;
    double bound(const Party& party) const;  // ns that it may be behind
    double bound(const Party& party, bool trial) const;

    Parameters p_;
    Nanoseconds judged_at_ = 0;
    const Client* furthest_behind_ = nullptr;
    Nanoseconds presumes_until_ = 0, presumes_for_ = 0;  // the last time, and for how long
    bool turns_ = false;                                 // somebody takes turns
    bool trial_ = false;                                 // somebody was released a moment ago
};

}  // namespace gemlet::arbiter
