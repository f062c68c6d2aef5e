// What a policy decides and what it may know. A policy is one file here, one line in policy.cpp, its name in
// POLICIES of src/gemlet/model.py, and one test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

struct Group {
    GroupId id = 0;
    size_t slot = 0;  // small index, reused after removal: where a policy keeps its own numbers
    GroupSpec spec;
    double sm = 1.0;  // fraction of the multiprocessors that its widest client has
    uint32_t clients = 0;
    uint32_t waiting = 0;           // clients of it that wait for the token
    Nanoseconds waiting_since = 0;  // when the first of those asked
    bool running = false;           // a client of it holds the token and is not overdue
    bool exclusive = false;         // a client of it takes turns
    Nanoseconds busy_at = 0;        // when it last ran or waited, if it does not now
    Nanoseconds lingers_until = 0;  // it was stopped in the middle of its work, so it counts as wanting for a moment
    Nanoseconds used = 0;           // device time charged
    double planned = 0.0;           // its part of the device in slots of its gang; 0: it runs as the policy decides

    bool wants(Nanoseconds now) const { return running || waiting > 0 || now < lingers_until; }
};

using Groups = std::vector<const Group*>;

// One grant.
struct Turn {
    const Group* group;
    Nanoseconds granted;
    Nanoseconds deadline;
    double part = 1.0;  // of the time that it is charged for: others run beside it
};

struct Terms {
    Nanoseconds deadline = kNever;  // <= now: revoke
    bool contended = false;
};

class Policy {
  public:
    virtual ~Policy() = default;

    // --- what every policy decides
    // The waiting group that runs next, or null to leave the device idle until next_event().
    virtual const Group* pick(const Groups& waiting, Nanoseconds now) = 0;
    // How long a holder may go on, given who contends for its place (its own group, if more of its clients wait).
    virtual Terms terms(const Turn& turn, const Groups& contenders, Nanoseconds now) = 0;

    // --- what it may want to hear
    virtual void added(const Group& group, Nanoseconds now) {}    // its slot is new
    virtual void changed(const Group& group, Nanoseconds now) {}  // its spec is new
    virtual void demand(const Groups& all, Nanoseconds now) {}    // who wants, or a spec, changed, or a turn ended
    virtual void granted(const Turn& turn, Nanoseconds now) {}
    // `amount` more device time (a correction may be negative).
    virtual void charge(const Group& group, Nanoseconds amount, Nanoseconds now) {}
    virtual void stopped(const Turn& turn, StopReason reason, Nanoseconds now) {}

    // --- what it may answer
    // When pick() or terms() may answer differently though nothing happened.
    virtual Nanoseconds next_event(const Groups& waiting, Nanoseconds now) const { return kNever; }
    virtual double target(const Group& group) const { return 0.0; }
    // The share that slots of a gang are to give it, or below 0 while it does not want. Not nothing if it would get
    // a little of the device even where its target is 0.
    virtual double due(const Group& group) const { return -1.0; }
    virtual std::string blocked(const Group& group, Nanoseconds now) const {
        return {};
    }  // why pick() passes over it
    virtual bool at_maximum(const Group& group, Nanoseconds now) { return false; }  // may not run yet for its maximum
    virtual bool may_park(const Group& group, Nanoseconds now) { return true; }
    // Whether it may run beside a holder that takes turns with others who wait: it has not had its share yet.
    virtual bool behind(const Group& group) const { return true; }
    // Whether a client of `group` that has a parked token may take it while one of `holder` runs. It submits at once,
    // and the holder is told to stop meanwhile, so no message and no wake-up stand between a request and the device.
    virtual bool may_interrupt(const Group& group, const Group& holder, Nanoseconds now) { return false; }
    // Whether `group`, which waits beside `others`, would end at once the turns of those that it may interrupt.
    virtual bool hurries(const Group& group, const Groups& others, Nanoseconds now) { return false; }
    // Whether it waits, has less than its minimum, and has waited for others for so long of late that their turn
    // should end for it.
    virtual bool owed(const Group& group, Nanoseconds now) const { return false; }
    virtual void turns_begin(const Groups& all, Nanoseconds now) {}  // who co-ran so far takes turns from now on
    virtual void switch_cost(Nanoseconds cost) {}                    // of a hand-over, from now on
    virtual bool by_arrival() const {
        return false;
    }  // inside a group: first come first served, not least used first
    virtual bool keeps_slots() const { return false; }  // of gangs, in which it decides nothing
    virtual bool open() const { return false; }         // clients co-run until a promise is in danger
    virtual Nanoseconds grace(const Parameters& parameters) const { return parameters.grace; }
};

// Throws std::invalid_argument for a name it does not know.
std::unique_ptr<Policy> make_policy(const std::string& name, const Parameters& parameters);

std::unique_ptr<Policy> make_fair(const Parameters& parameters);
std::unique_ptr<Policy> make_gemini(const Parameters& parameters);
std::unique_ptr<Policy> make_fifo(const Parameters& parameters);

}  // namespace gemlet::arbiter
