// Decides who holds the token of one device. Pure: events and `now` go in, actions come out; no clock, no I/O, no
// threads. server.cpp runs it on real time, module/arbiter_binding.cpp exposes it to Python, where tests and `gemlet
// simulate` run it on virtual time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "group_fields.h"

namespace gemlet::arbiter {

using Nanoseconds = int64_t;
using GroupId = uint32_t;
using ClientId = uint32_t;

inline constexpr Nanoseconds kNever = INT64_MAX;

// Why a client does not share the device (contention.hpp).
enum class Why : uint8_t {
    kShares = 0,      // it does
    kAlways = 1,      // the policy, or its user, wants turns
    kBothBusy = 2,    // it and another keep the device busy all the time
    kAhead = 3,       // another was behind its promise while this one was ahead of its own
    kBehind = 4,      // it was behind its own promise, and nobody in particular was seen to be ahead
    kSlowed = 5,      // class latency: its requests took longer than was promised
    kUnverified = 6,  // under MPS: how fast it is alone is not known yet
};
enum class StopReason : uint8_t { kDeadline = 0, kIdle = 1, kRevoked = 2, kExit = 3 };

struct Parameters {
    // Measured on an H200 (driver 580): the hardware's own context switch takes ~155 us.
    Nanoseconds switch_cost = 180'000;
    // Under MPS there is no such switch: an undrained hand-over was too cheap to measure, a drained one took 110 us.
    Nanoseconds switch_cost_mps = 30'000;
    double switch_loss = 0.007;          // share of device time that hand-overs may cost
    double interrupt_loss = 0.02;        // ... and turns cut short for clients that come back from a pause
    Nanoseconds cycle_min = 20'000'000;  // a cycle gives every waiting group one quantum
    Nanoseconds cycle_max = 100'000'000;
    Nanoseconds quantum_min = 2'000'000;
    Nanoseconds cap_block = 5'000'000;  // a group at its maximum runs in blocks of at least this
    // One turn of the hardware's own time slicing (2.09 ms and two switches on an H200, driver 580): see drained().
    Nanoseconds hardware_turn = 2'400'000;
    Nanoseconds grace = 3'000'000;          // a holder this long past its end no longer keeps others waiting
    Nanoseconds debt_max = 10'000'000'000;  // virtual time a group may be ahead of the others: after a kernel
                                            // that ran for minutes it still runs again
    Nanoseconds expect_early = 50'000;    // the device is free this long before a latency client that keeps a period
    Nanoseconds window_latency = 40'000;  // in-flight bounds, by situation
    Nanoseconds latency_quiet =
        10'000'000'000;  // ... and after this long without a request the shared one holds again
    Nanoseconds window_shared = 400'000;
    Nanoseconds window_alone = 8'000'000;  // ... also beside clients that had nothing to do for `quiet`
    Nanoseconds quiet = 1'000'000'000;
    // Open sharing (contention.hpp). Without it every client is exclusive, and all take turns.
    bool open = true;
    Nanoseconds observe = 5'000'000;           // how often co-running clients are looked at
    Nanoseconds lag = 5'000'000;               // time behind its promise at which a client is in danger ...
    Nanoseconds lag_latency = 500'000;         // ... and one of the class latency
    Nanoseconds backoff_min = 500'000'000;     // a client stays exclusive at least this long, ...
    Nanoseconds backoff_max = 16'000'000'000;  // ... twice as long each time its release proved wrong, up to this
    // How often a client looks at its queues, and the pause that ends its turn, by situation: alone or while all
    // share, while others wait. The first is no more than what makes an idle group look idle; the second is about
    // what a hand-over costs (ski rental: never more than twice the optimum, whatever comes next), and at most
    // `idle_most` for one whose pauses are short.
    Nanoseconds poll_alone = 5'000'000, poll_shared = 1'000'000, poll_requests = 250'000, poll_contended = 100'000;
    Nanoseconds idle_alone = 5'000'000, idle_contended = 100'000, idle_most = 2'000'000;
    // Gangs (gangs.hpp). Work that should have drained this long ago waits for another device ...
    Nanoseconds slack = 300'000;
    Nanoseconds finish = 10'000'000;  // ... and is waited for no longer than this
    // The published Gemini policy (base, min quota and window of its launch scripts).
    Nanoseconds gemini_base_quota = 300'000'000;
    Nanoseconds gemini_min_quota = 20'000'000;
    Nanoseconds gemini_window = 10'000'000'000;
};

struct Action {
    enum class Kind : uint8_t {
        kGrant,   // the client may submit, until `deadline`
        kUpdate,  // the holder's terms changed: deadline, window, contended
        kRevoke,  // the holder must stop now
        kPark,    // the client gave back an idle token that nobody wants: it may take it again without asking
        kUnpark,  // ... no longer. The server compare-exchanges; if the client was faster it calls took() at once
                  // and then carries out the actions that follow: they take the next client's grant back
    } kind;
    ClientId client;
    Nanoseconds deadline = kNever;  // kGrant, kUpdate, kRevoke
    // The terms of the lease; kGrant, kUpdate, kRevoke.
    Nanoseconds window = 0;     // bound on work in flight
    Nanoseconds idle = 0;       // a pause this long ends it ...
    Nanoseconds idle_most = 0;  // ... or this long, while its pauses are short on average
    Nanoseconds poll = 0;       // how often the client looks at its queues
    bool shared = false;        // others may run at the same time
    uint32_t submissions = 0;   // its turn ends after so many; 0: for no such reason
    bool raise = false;         // kPark: raise the alarm when you take it, the others will stop
};

struct GroupUsage {
    GroupId id;
    GroupSpec spec;
    double target;     // share the policy aims at now, given who wants; 0 while the group does not want
    Nanoseconds used;  // device time charged since the group exists
    uint32_t clients, waiting, holding;
    std::string reason;     // why it waits or runs, for people
    Nanoseconds throttled;  // how long it waited because of its maximum, since the group exists
    double speed;           // of its clients lately, relative to alone; below 0 if unknown
    Why why;                // one of its clients does not share the device, and why
};

// What ranks of a gang do, one of them or several together. A gang is held up only while all its ranks are: one that
// waits for a peer looks as if its neighbours kept it waiting.
struct Ranks {
    bool any = false;
    bool behind = true;    // what they are promised, or they wait for the token
    bool saturate = true;  // they always have work queued, and wait for it
    double duty = 1.0;     // with the device to itself, the part of the time in which work of the idlest was there

    void add(const Ranks& more) {
        any |= more.any, behind &= more.behind, saturate &= more.saturate;
        duty = std::min(duty, more.duty);
    }
};

// What decides for all devices of a host at once (gangs.hpp) must know of a group on one of them.
struct Attendance {
    GroupId group = 0;
    double due = -1.0;             // the share that the policy gives it; below 0 while it does not want
    bool wants = false;            // a client of it runs or waits
    bool contends = false;         // ... takes turns with another
    bool exclusive = false;        // ... runs only while others do not
    bool busy = false;             // ... runs, or its work has yet to drain
    bool stuck = false;            // ... should have drained by now: it may wait for work of another device
    bool catches_up = false;       // ... runs in the slot of others
    bool waits_for_peer = false;   // ... and has not stopped in time: what it has submitted waits there
    bool met = false;              // another group that takes turns with it runs or waits
    bool met_lately = false;       // ... or did a moment ago
    bool owes = false;             // ... or waits for too long, for its minimum
    Nanoseconds work = 0;          // completed by its clients here, by their own account
    uint64_t launches = 0;         // submitted by them, likewise
    Nanoseconds moved = 0;         // when a turn of theirs stopped or drained last
    uint32_t clients = 0;          // how many of them run or wait, or did a moment ago
    uint32_t at_rest = 0;          // how many of these have nothing in flight that drains
    bool ended = false;            // one of them has stopped because its slot ends
    Nanoseconds look_at = kNever;  // when `stuck` may change though nothing happens
    Ranks ranks = {};              // its clients here
};

// Until when one device is whose. Gangs run in slots of their own, and nobody who takes turns with them beside.
struct Reservation {
    GroupId gang = 0;   // 0: no gang's
    uint64_t slot = 0;  // its number; each slot has another
    Nanoseconds until = kNever;
    bool over = false;  // what is in flight drains
    // ... and only goes on if clients that have nothing in flight submit what it waits for; how many may.
    uint32_t go_on = 0;
    uint32_t submissions = 0;  // ... and how much each of them must submit for that; 0: it is not known
    bool operator==(const Reservation&) const = default;
};

// What a client says of itself, all since it attached; for the arbiter a claim.
struct Progress {
    Nanoseconds work = 0;   // completed, as long as it takes on an idle device
    uint64_t launches = 0;  // submissions
    uint64_t samples = 0;   // looks at its queues while it held the token ...
    uint64_t busy = 0;      // ... that found work ...
    uint64_t awaited = 0;   // ... for which a thread of the program waited
};

// Events that make no sense (unknown ids, a stop without a grant, a second request) are ignored and counted: they
// come from clients, and a client may send anything in any order. Time that runs backwards stands still.
class Arbiter {
  public:
    Arbiter(const std::string& policy, Parameters parameters);  // throws std::invalid_argument
    ~Arbiter();

    // Creates a group, or changes the live one of that name. Throws std::invalid_argument.
    GroupId set_group(const GroupSpec& spec, Nanoseconds now);
    // Throws std::invalid_argument while the group has clients.
    void remove_group(GroupId group, Nanoseconds now);

    // `mps`: its contexts run under MPS, on the group's fraction of the multiprocessors as it is now.
    void add_client(ClientId client, GroupId group, Nanoseconds now, bool mps = false);
    void remove_client(ClientId client, Nanoseconds now);  // also by death, in any state

    void request(ClientId client, Nanoseconds now);
    bool cancel(ClientId client, Nanoseconds now);  // its request; false if there was none
    void took(ClientId client, Nanoseconds now);
    // `unused`: by its own account it submitted nothing in this turn; counts only if it did not stop in time.
    void stopped(ClientId client, StopReason reason, Nanoseconds tail, Nanoseconds now, bool unused = false);
    // What it had in flight when it stopped is complete. `earlier`: that was not the last time it stopped, and of
    // what followed nothing is known. Otherwise nothing of it drains any more: a client that runs for a moment
    // between two stops may report one drain for both.
    void drained(ClientId client, Nanoseconds at, Nanoseconds now, bool earlier = false);

    // What is known of the group's other devices.
    void hear(GroupId group, const Ranks& peers);

    // Before stopped() and tick(), of all who run.
    void progress(ClientId client, const Progress& progress);

    Nanoseconds next_event() const;  // when tick() is due, kNever if not
    void tick(Nanoseconds now);
    std::vector<Action> take_actions();

    std::vector<GroupUsage> usage(Nanoseconds now) const;

    // For gangs.cpp, which calls them for all devices at the same time. A group under plan runs only in its slots.
    struct Name {
        GroupId group;
        std::string name;
        Gang gang;
    };
    uint64_t changes() const;         // of what names() says
    std::vector<Name> names() const;  // of groups with clients, where the policy can keep to slots
    const GroupSpec* spec(GroupId group) const;
    void attend(Nanoseconds now);
    Attendance attendance(GroupId group) const;  // as of the last attend()
    struct Planned {
        GroupId group;
        double share;
        uint32_t catch_up = 0;  // what its clients may submit out of its slot, for their peers wait for it
        bool operator==(const Planned&) const = default;
    };
    void reserve(const std::vector<Planned>& planned, const Reservation& reservation, Nanoseconds now);

    uint64_t ignored() const;  // events that made no sense so far
    // Why a client does not share the device; raised whenever that may have changed for any of them.
    Why standing(ClientId client) const;
    uint64_t standings_changed() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gemlet::arbiter
