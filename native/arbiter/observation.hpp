// What one client's own counters say about how fast it runs: pure arithmetic over decayed sums.
//
// A client looks at its queues now and then. The part of the looks that found work is how long its work was queued or
// ran (`busy`); the part of those for which a thread waited is how long its host could not go on (`awaited`). What it
// waited beyond the time that its work takes, others have cost it. A program that is bound by its host is therefore
// not slowed down by a busy device until it waits for it.
//
// A launch spends a few microseconds in the queue without running. Without that correction, programs of tiny kernels
// would look held up by nobody; it is learned whenever a client has the device to itself.
#pragma once

#include <algorithm>
#include <cmath>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

// Sums that forget: what happened `span` ago counts 1/e.
struct Rates {
    double time = 0.0, samples = 0.0, busy = 0.0, awaited = 0.0, work = 0.0, launches = 0.0;
    bool freely = true;      // it could launch far ahead: it did not wait for room in a short window
    bool disturbed = false;  // others, who had stopped, have not drained yet

    void decay(double factor) {
        for (double* sum : {&time, &samples, &busy, &awaited, &work, &launches}) *sum *= factor;
    }
    void add(const Rates& more) {
        time += more.time, samples += more.samples, busy += more.busy;
        awaited += more.awaited, work += more.work, launches += more.launches;
    }
    double busy_part() const { return samples > 0.0 ? busy / samples : 0.0; }
    double awaited_part() const { return samples > 0.0 ? awaited / samples : 0.0; }
    double work_rate() const { return time > 0.0 ? work / time : 0.0; }
    double launch_rate() const { return time > 0.0 ? launches / time : 0.0; }
};

class Observation {
  public:
    // Its counters as it last said. Smaller ones than before are not believed.
    void say(const Progress& progress);

    Nanoseconds work() const { return said_.work; }  // in all
    uint64_t launches() const { return said_.launches; }
    // So much of its work may be done and not said yet: it says of a kernel when that is complete.
    Nanoseconds unsaid() const {
        const Nanoseconds each = said_.work / static_cast<Nanoseconds>(std::max<uint64_t>(said_.launches, 1));
        return std::min(std::max(each, static_cast<Nanoseconds>(unsaid_)), kLongest);
    }

    // What happened since the last call, of which it held the token for `time`. A look counts as so many `samples`.
    Rates take(Nanoseconds time, double samples = 1.0);

    // It had the device to itself, or ran beside others.
    void ran_alone(const Rates& rates);
    void ran_beside(const Rates& rates);
    void forget_beside() { beside_ = together_ = {}; }
    // What it did alone says nothing of it once its launches are of another length: a program loads, warms up and
    // then works.
    bool unlike_alone() const;
    void forget_alone() { alone_ = freely_ = undisturbed_ = {}; }

    bool known_alone() const { return alone_.samples >= kEnough; }
    // A program that has just begun loads modules: its first work takes long to complete, whichever others run.
    bool known_beside(double enough = kEnough) const {
        const bool begun = alone_.work > 0.0 || beside_.work > 0.0 || said_.samples >= kBegun;
        return beside_.samples >= enough && begun;
    }
    // Part of the time in which its work was queued or ran, with the device to itself; 1 while unknown.
    double duty() const { return known_alone() ? alone_.busy_part() : 1.0; }
    // Part of the time in which the device works for it, with the device to itself; 1 while unknown.
    double use_alone() const;
    // Speed beside others, 1 is alone.
    double speed() const;
    // The same where `capacity` is all that all of them can do together, and `total` what all of them say they did.
    double speed(double total, double capacity) const;
    const Rates& beside() const { return beside_; }
    // The same for half a second or so. Ranks do in steps what they do.
    const Rates& together() const { return together_; }
    bool known_together() const { return together_.time >= kTogetherTime && together_.work > 0.0; }
    const Rates& alone() const { return alone_; }
    // Part of the time lately in which its host went on or its own work was done. A rank that waits on the
    // device for its peer does neither.
    double going() const;
    // Lately it always had work queued and its host waited for it.
    bool always_waits() const { return hardly_empty() && mostly_busy() && lately_.awaited_part() >= kWaits; }
    // ... at so few looks none that two such programs lose less by turns than by the hardware's switches.
    bool hardly_empty(Nanoseconds least = 0) const {
        return filled_ >= kFilled && filled_time_ >= static_cast<double>(std::max(kFilledTime, least));
    }
    // Part of the time that it ran, of the last 100 ms or so, in which its host waited for it. One long step, such as
    // the first of a generated text, does not make it saturating, and the pause after it does not end that.
    double waiting() const { return habit_.awaited_part(); }
    // That is known, and no more than `part`.
    bool hardly_waits(double part) const { return habit_.samples >= kEnough && waiting() <= part; }
    // Whether its launches are presumed to take time until that is seen. Where kernels are as short as that, it would
    // seem to lose nothing beside others.
    void presume_queueing(bool presume) { presumes_queueing_ = presume; }
    void forget_filled() { filled_ = filled_time_ = 0.0; }
    // For half a second or so. A rank that is bound by its host has phases in which its queue is never empty, too.
    bool mostly_busy() const { return recently_.busy_part() >= kBusyRank; }

    static constexpr double kEnough = 12.0;           // samples
    static constexpr double kEnoughOfRequests = 4.0;  // ... where each request counts
    // A program that always has work queued but whose host hardly ever waits for it is served well by time slicing:
    // its work is done in the slices that it gets.
    static constexpr double kWaits = 0.75;
    static constexpr Nanoseconds kFilledTime = 30'000'000;
    // Two programs alike that are busy for a part b of the time alone get 0.92 / b done where the hardware switches
    // between them, since one works in the pauses of the other, and 0.99 in turns. From this b on, turns are better.
    static constexpr double kWorthTurns = 0.93;

  private:
    double span() const;
    void happened(const Rates& rates);
    double stalled(const Rates& rates) const;

    static constexpr Nanoseconds kLongest = 1'000'000'000;  // kernel; that it has longer ones is not believed
    static constexpr double kTogetherTime = 200e6;
    static constexpr uint64_t kBegun = 200;  // samples
    static constexpr double kFilled = 20.0;
    static constexpr double kBusyRank = 0.9;

    Progress said_, taken_;
    double unsaid_ = 0.0;                 // ns, as it was found: most of it stays for a while
    Rates alone_, freely_, undisturbed_;  // the others: of the first what was so
    Rates beside_, together_, lately_, habit_, recently_;
    double queueing_ = 4'000.0;  // ns that a launch is queued and does not run; at first as on an H200
    bool queueing_seen_ = false, presumes_queueing_ = true;
    double filled_ = 0.0;  // looks that found work, less kEmpty for each that found none; and their time
    double filled_time_ = 0.0;
};

}  // namespace gemlet::arbiter
