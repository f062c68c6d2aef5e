// Turns of gangs: groups whose clients wait for each other across devices. Decides for all devices of a host at once.
//
// A gang runs as open as anybody until one of its clients has to take turns, on whichever device. From then on its
// clients run in slots, which begin and end on all its devices at the same time: a client that runs while its peer
// may not only waits for it, on the device. In each cycle every gang that wants has a slot, as long as the least of
// its shares on its devices; the rest of a device's time belongs to the clients that have no gang.
//
// A slot ends on all devices as soon as it ends for one rank, with work in flight. Some of it may wait for a peer
// that was stopped a moment earlier. It would keep the device from the next one and never end, so the peers go on,
// one kernel after the other, until nothing waits any more.
//
// Pure: no clock, no I/O.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "arbiter/arbiter.hpp"
#include "arbiter/policies/recently.hpp"
#include "arbiter/timetable.hpp"

namespace gemlet::arbiter {

class Gangs {
  public:
    explicit Gangs(const Parameters& parameters) : p_(parameters) {}

    void add(Arbiter& device);
    void remove(Arbiter& device);
    // Clients of the group were seen to use several devices together.
    void tie(const std::string& group, bool tied = true);

    // After every event on any device, and at next_event(). Afterwards devices have actions to carry out.
    void settle(Nanoseconds now);
    Nanoseconds next_event() const { return next_; }

    bool any() const { return !gangs_.empty() || told_; }  // whether devices may have been told anything
    bool is_gang(const std::string& group) const;

  private:
    struct Member {
        static constexpr double kUnknown = 2.0;  // more than any share
        size_t device = 0;
        Attendance seen = {};
        double least = 0.0;           // its minimum there
        double due = -1.0;            // its share there when it last wanted; below 0: it has not yet
        double least_due = kUnknown;  // the least of them since `due_since`, and in the cycle before that
        double least_before = kUnknown;
        Nanoseconds due_since = 0;
        uint64_t launches_at_rest = 0;  // how much it had submitted when all were last at rest
        uint64_t launches_at_end = 0;   // ... when it came to rest at the end of its slot
        Nanoseconds idle = 0;           // how long it has had nothing to do while others of the gang had work there
        bool works() const { return seen.wants || seen.busy; }
        void find_due(Nanoseconds now, Nanoseconds cycle);
    };
    struct Gang {
        std::string name;
        GroupSpec spec;
        std::vector<Member> members;
        // Its clients on devices of which they make no use: programs ask about each device there is.
        std::vector<Member> away = {};
        bool together() const { return members.size() > 1; }
        void find_minimum();
        bool contends = false;  // with others, on one of its devices
        bool held = false;      // contends, or has slots together with one that does
        bool planned = false;   // it has slots
        double share = 0.0;
        double credit = 0.0;  // ns of slots that it is owed
        double due = 0.0;     // ns of the present one that it is still charged for
        // Its slot: out of it, in it, or past its end with work in flight.
        enum class Phase : uint8_t { kOut, kIn, kFinishing } phase = Phase::kOut;
        uint64_t slot = 0;  // its number
        Nanoseconds until = 0;
        Nanoseconds served = 0;  // when its last slot ended
        bool cuts = false;       // others' slots ended for its own, or its own ended early
        bool fills = false;      // nobody else wanted the time: its slot ends when somebody does
        Nanoseconds work = 0;    // completed before its slot
        bool hangs = false;  // in its last slot it completed nothing and did not drain: a peer does not run at all
        bool wants = false;
        Nanoseconds wanted_at = 0;
        bool paused = true;  // it wanted nothing at some time since its last slot ended though it wanted more
        // It wants, or pauses and has less than its minimum: what it pauses for would cost it its slots.
        bool claims = false;
        Recently had_slots;
        bool exclusive = false;
        bool capped() const { return spec.max < 1.0; }
        bool latency() const { return spec.priority == Priority::kLatency; }
        bool best_effort() const { return spec.priority == Priority::kBestEffort; }
    };
    struct Entry {
        std::string gang;
        Nanoseconds from, until;
        Nanoseconds due;  // how much of it is its own; the rest is time that nobody else wants
    };

    struct Device;

    void find_members();
    void forget_peers(const Gang& gang);
    void attend(Gang& gang, Nanoseconds now);
    void regroup(Gang& gang);  // who of it is away
    void look(Nanoseconds now);
    void account(Nanoseconds now);
    void account(Device& device, bool is_free, double time) const;
    void pay(Gang& gang, Nanoseconds now);  // those in no gang that it keeps from their minimum
    void end_slots(Nanoseconds now);
    void interrupt(Nanoseconds now);
    void plan(Nanoseconds now);
    void start_slots(Nanoseconds now);
    void fill(Nanoseconds now);
    bool tell(Nanoseconds now);
    void find_next(Nanoseconds now);

    void begin(Gang& gang, Nanoseconds until, double due, bool fills);
    void over(Gang& gang, Nanoseconds now);
    bool stuck(const Gang& gang, Nanoseconds now) const;
    bool ended(const Gang& gang) const;                              // its slot, for one of its ranks
    static uint32_t counted(const Member& member, uint64_t before);  // what it has submitted since
    // How much less it has submitted, since all were at rest, than the peer that has submitted most. None while
    // something of it drains.
    static uint32_t behind(const Gang& gang, const Member& member);
    void go_on_for_peers(const Gang& gang, const Member& member, Reservation& reservation) const;
    bool host_is_late(const Gang& gang, Nanoseconds now) const;
    static bool known_behind(const Gang& gang);
    uint32_t catch_up(const Gang& gang, const Member& member, Nanoseconds now) const;
    static bool catches_up(const Gang& gang);
    // It is so far ahead of its share that it has to wait for its slots.
    bool spent(const Gang& gang) const { return gang.credit <= -kSpent * static_cast<double>(p_.cycle_max); }
    static constexpr double kSpent = 0.9;  // of a cycle
    bool alone(const Gang& gang) const;    // nobody else is due a turn on its devices
    static bool saturates(const Gang& gang);
    static double due_share(const Gang& gang);
    bool drained(const Gang& gang) const;
    static Nanoseconds work(const Gang& gang);       // completed so far
    Nanoseconds quiet_from(const Gang& gang) const;  // since then nothing of it has stopped or drained for a while
    bool nearly(Nanoseconds then, Nanoseconds now) const;
    bool meet(const Gang& a, const Gang& b) const;
    bool devices_free(const Gang& gang) const;
    Nanoseconds next_start(const Gang& gang) const;  // of another's slot on one of its devices
    const Gang* find(const std::string& name) const;
    Gang* find(const std::string& name);
    static void hold(const Gang& gang, std::vector<bool>& devices);
    static bool is_on(const Gang& gang, const std::vector<bool>& devices);
    std::vector<bool> taken() const;  // whether a device is a gang's

    Parameters p_;
    struct Device {
        Arbiter* arbiter;
        uint64_t changes = 0;
        std::vector<Arbiter::Planned> planned = {};
        Reservation reservation = {};
        // Of those in no gang, together.
        bool met = false;     // they contend with a gang, and run or wait
        double share = 0.0;   // what the gangs leave
        double credit = 0.0;  // ns that they are behind it
        bool owed = false;    // they were behind by a whole cycle's worth, and are behind still
    };
    std::vector<Device> devices_;
    std::set<std::string> tied_;
    std::vector<Gang> gangs_;   // by name
    std::vector<Entry> table_;  // of the present cycle, those that have not begun
    Nanoseconds cycle_end_ = 0;
    Nanoseconds accounted_ = 0;
    uint64_t slots_ = 0;  // that have begun
    bool plan_anew_ = false;
    bool told_ = false;    // a device has slots
    bool changed_ = true;  // devices, or what is tied
    Nanoseconds next_ = kNever;
};

}  // namespace gemlet::arbiter
