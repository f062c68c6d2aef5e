// Decides who holds the token of one device. Pure: events and `now` go in, actions come out; no clock, no I/O, no
// threads. server.cpp runs it on real time, module.cpp exposes it to Python, where tests and `gemlet simulate` run it
// on virtual time.
#pragma once

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

enum class PairState : uint8_t { kUnknown = 0, kTogether = 1, kApart = 2 };
enum class StopReason : uint8_t { kDeadline = 0, kIdle = 1, kRevoked = 2, kExit = 3 };

struct Parameters {
    // Measured on an H200 (driver 580): the hardware's own context switch takes ~155 us.
    Nanoseconds switch_cost = 180'000;
    // Under MPS there is no such switch: an undrained hand-over was too cheap to measure, a drained one took 110 us.
    Nanoseconds switch_cost_mps = 30'000;
    double switch_loss = 0.007;          // share of device time that hand-overs may cost
    double interrupt_loss = 0.02;        // ... and turns cut short for those who come back from a pause
    Nanoseconds cycle_min = 20'000'000;  // a cycle gives every waiting group one quantum
    Nanoseconds cycle_max = 100'000'000;
    Nanoseconds quantum_min = 2'000'000;
    Nanoseconds cap_block = 5'000'000;  // a group at its maximum runs in blocks of at least this
    // One turn of the hardware's own time slicing (2.09 ms and two switches on an H200, driver 580): see drained().
    Nanoseconds hardware_turn = 2'400'000;
    Nanoseconds grace = 3'000'000;          // a holder this long past its end no longer keeps others waiting
    Nanoseconds debt_max = 10'000'000'000;  // virtual time a group may be ahead of the others: after a kernel
                                            // that ran for minutes it still runs again
    Nanoseconds expect_early = 50'000;      // the device is free so long before a latency client that keeps a period
    Nanoseconds window_latency = 40'000;    // in-flight bounds, by situation
    Nanoseconds latency_quiet = 10'000'000'000;  // ... and after so long without a request the shared one holds again
    Nanoseconds window_shared = 400'000;
    Nanoseconds window_alone = 8'000'000;  // ... also beside those who had nothing to do for `quiet`
    Nanoseconds quiet = 1'000'000'000;
    // Two groups under MPS whose fractions do not fit together (pairs.hpp): how long a trial side by side and, if it
    // went well, a turn side by side is; what both together must gain; when to try again (up to 30 times later), and
    // to measure anew.
    Nanoseconds pair_trial = 30'000'000;
    Nanoseconds pair_turn = 500'000'000;
    double pair_gain = 1.05;
    Nanoseconds pair_again = 2'000'000'000;
    Nanoseconds pair_refresh = 20'000'000'000;
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
    Nanoseconds window = 0;         // kGrant, kUpdate, kRevoke
    bool contended = false;  // kGrant, kUpdate, kRevoke: somebody waits, so an idle holder gives the token back
    bool beside = false;     // ... and another runs beside it, whose fraction does not fit with its own
    bool patient = false;    // ... and a pause of its host does not end its turn
};

struct GroupUsage {
    GroupId id;
    GroupSpec spec;
    double target;     // share the policy aims at now, given who wants; 0 while the group does not want
    Nanoseconds used;  // device time charged since the group exists
    uint32_t clients, waiting, holding;
    std::string reason;     // why it waits or runs, for people
    Nanoseconds throttled;  // how long it waited because of its maximum, since the group exists
};

// Two groups that may run side by side, and how fast: 1 is the speed alone, 0 if never tried.
struct PairUsage {
    GroupId a, b;
    PairState state;
    double speed_a, speed_b;
};

// A client's looks at its queues while it holds the token, and those that found them empty: the part of its time in
// which the device waits for its next launch.
struct Looks {
    uint64_t all = 0, dry = 0;
};

// Events that make no sense (unknown ids, a stop without a grant, a second want) are ignored and counted: they come
// from clients, and a client may send anything in any order. Time that runs backwards stands still.
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

    void want(ClientId client, Nanoseconds now);
    bool withdraw(ClientId client, Nanoseconds now);  // its want; false if there was none
    void took(ClientId client, Nanoseconds now);
    void stopped(ClientId client, StopReason reason, Nanoseconds tail, Nanoseconds now);
    void drained(ClientId client, Nanoseconds at, Nanoseconds now);

    // The work `client` has completed so far, ns as on an idle device, and its looks so far. Before stopped() and
    // tick(), of all who run.
    void progress(ClientId client, Nanoseconds work, Looks looks = {});

    Nanoseconds next_event() const;  // when tick() is due, kNever if not
    void tick(Nanoseconds now);
    std::vector<Action> take_actions();

    std::vector<GroupUsage> usage(Nanoseconds now) const;
    std::vector<PairUsage> pairs() const;
    uint64_t ignored() const;  // events that made no sense so far

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gemlet::arbiter
