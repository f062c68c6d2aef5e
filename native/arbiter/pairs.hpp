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
    // A turn with others. `due`: what of the time beside them it paid for, which is its share of it in turns.
    struct Turn {
        Nanoseconds work = 0, apart = 0, beside = 0, due = 0;
    };

    // For how long the two may run side by side from now on; 0: they take turns.
    Nanoseconds together_for(const Member& a, const Member& b, Nanoseconds now);

    void ran_alone(GroupId group, double rate, Nanoseconds now);
    // A turn alone too short to tell; who only has such ones is not asked for ever.
    void ran_short(GroupId group, Nanoseconds now);
    // Judges as soon as it has seen enough of them.
    void ran_together(const Member& a, Done done_a, const Member& b, Done done_b, Nanoseconds now);
    // `a` did this in a turn with b. Whether it got less than in turns, which ends the pair: b is not
    // asked, or it could always have nothing more to do just before it is measured (`was_left`).
    bool lost(const Member& a, const Member& b, const Turn& turn, bool was_left, Nanoseconds now);
    // The same of a turn with more than one other. It is not beside so many for a while then.
    bool lost_in_company(GroupId group, bool hurried, const Turn& turn, Nanoseconds now);
    bool may_have_company(GroupId group, Nanoseconds now) const;
    bool curious(GroupId group, Nanoseconds now) const;  // its next turns alone will be compared with others
    bool together(GroupId a, GroupId b) const;           // known to be good for both
    bool untried(GroupId a, GroupId b) const;            // nothing is known of them
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
    struct Patience {
        Nanoseconds again = 0, last = 0;  // not before that; how long that was the last time
        void lose(const Parameters& p, Nanoseconds now);
    };
    // What a group met with beside others.
    struct Beside {
        Turn turns{};        // with more than one, since they were last judged
        Patience company{};  // before it is beside more than one
        Patience wary{};     // before it is tried with one it does not know
    };
    struct Pair {
        PairState state = PairState::kUnknown;
        Nanoseconds since = 0;                // of this state
        Nanoseconds try_again = 0;            // kApart: not before
        Nanoseconds patience = 0;             // how long that was the last time
        unsigned trials = 0;                  // since it became unknown
        unsigned turns_a = 0, turns_b = 0;    // turns alone that were known when it last became unknown
        Done done_a{0, 0}, done_b{0, 0};      // of this trial
        Turn whole_a{}, whole_b{};            // turns with the other as a whole
        double speed_a = 0.0, speed_b = 0.0;  // together, of the speed alone; 0: never tried
    };
    using Key = std::pair<GroupId, GroupId>;

    static Key key(GroupId a, GroupId b) { return {std::min(a, b), std::max(a, b)}; }
    // Whether one that has this part of its speed alone is not worse off than in turns.
    static bool enough(double speed, const Member& member);
    bool fell_short(GroupId group, bool hurried, Turn& sum, const Turn& turn, Nanoseconds now);
    bool wary(GroupId group, Nanoseconds now) const;
    Pair& pair_of(const Member& a, const Member& b, Nanoseconds now);
    bool fresh(const Alone& alone, Nanoseconds now) const;
    bool knows(GroupId group, unsigned since, Nanoseconds now) const;
    void wait(Pair& pair, const Key& key, Nanoseconds now);
    void become(Pair& pair, PairState state, const Key& key, Nanoseconds now);

    Parameters p_;
    std::map<GroupId, Alone> alone_;
    std::map<GroupId, Beside> beside_;
    std::map<Key, Pair> pairs_;
};

}  // namespace gemlet::arbiter
