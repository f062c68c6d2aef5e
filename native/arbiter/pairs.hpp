// Which groups run side by side rather than in turns, though their fractions of the multiprocessors do not fit
// together: decided for each pair from how fast their work goes alone and together.
//
// Measuring beats predicting: what two kernels do to each other depends on occupancy, caches and bandwidth at once.
// The first guess is Orion's (EuroSys '24): a compute-bound and a memory-bound program go together, two of a kind do
// not, and of the unknown nothing is assumed but that a trial is cheap. Pure: no clock, no I/O.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

class Pairs {
  public:
    explicit Pairs(const Parameters& parameters) : p_(parameters) {}

    static constexpr int64_t kRequests = 4;  // a trial beside requests is so many times as long: they differ

    // One group as this sees it. `share`: of the time of both, if they take turns. `hurried`: nothing may slow it
    // down.
    struct Member {
        GroupId group;
        Workload workload;
        double share;
        bool hurried = false;
    };
    // Work completed in a time, both in ns; work counts what it takes on an idle device.
    struct Done {
        Nanoseconds work, time;
    };

    // For how long the two may run side by side from now on; 0: they take turns.
    Nanoseconds together_for(const Member& a, const Member& b, Nanoseconds now);

    void ran_alone(GroupId group, double rate, Nanoseconds now);
    // A turn alone too short to tell; who only has such ones is not asked for ever.
    void ran_short(GroupId group, Nanoseconds now);
    // Judges as soon as it has seen enough of them.
    void ran_together(const Member& a, Done done_a, const Member& b, Done done_b, Nanoseconds now);
    double alone(GroupId group) const;  // its rate; 0 if that is not known
    // Whether one that has this part of its speed alone is not worse off than in turns with `share` of the time.
    static bool enough(double speed, double share, bool hurried);
    // Whether it did less in these times than by turns, where `due` of the time `beside` others would be its own.
    bool fell_short(GroupId group, bool hurried, Nanoseconds work, Nanoseconds apart, Nanoseconds beside,
                    double due) const;
    // `a` did this in a turn, for `beside` of which b ran, too. Whether it got less than in turns, which ends the
    // pair: b is not asked, or it could always have nothing more to do just before it is measured (`was_left`).
    bool lost(const Member& a, const Member& b, Done done, Nanoseconds beside, bool was_left, Nanoseconds now);
    bool curious(GroupId group, Nanoseconds now) const;  // its next turns alone will be compared with others
    bool together(GroupId a, GroupId b) const;           // known to be good for both
    void forget(GroupId group);

    std::vector<PairUsage> view() const;

  private:
    struct Alone {
        std::array<double, 8> rates{};      // of the last turns
        unsigned turns = 0, too_short = 0;  // ... and in a row since the last of these
        Nanoseconds at = 0;                 // the last of them
        unsigned wanted = 0;                // turns it is asked for in all
        double rate() const;                // their median; 0 before the third
    };
    struct Turns {
        Nanoseconds work = 0, time = 0, beside = 0;
    };
    struct Pair {
        PairState state = PairState::kUnknown;
        Nanoseconds since = 0;                // of this state
        Nanoseconds try_again = 0;            // kApart: not before
        Nanoseconds patience = 0;             // how long that was the last time
        unsigned trials = 0;                  // since it became unknown
        unsigned turns_a = 0, turns_b = 0;    // turns alone that were known when it last became unknown
        Done done_a{0, 0}, done_b{0, 0};      // of this trial
        Turns whole_a{}, whole_b{};           // turns with the other as a whole
        double speed_a = 0.0, speed_b = 0.0;  // together, of the speed alone; 0: never tried
    };
    using Key = std::pair<GroupId, GroupId>;

    static Key key(GroupId a, GroupId b) { return {std::min(a, b), std::max(a, b)}; }
    Pair& pair_of(const Member& a, const Member& b, Nanoseconds now);
    bool fresh(const Alone& alone, Nanoseconds now) const;
    bool knows(GroupId group, unsigned since, Nanoseconds now) const;
    void wait(Pair& pair, const Key& key, Nanoseconds now);
    void become(Pair& pair, PairState state, const Key& key, Nanoseconds now);

    Parameters p_;
    std::map<GroupId, Alone> alone_;
    std::map<Key, Pair> pairs_;
};

}  // namespace gemlet::arbiter
