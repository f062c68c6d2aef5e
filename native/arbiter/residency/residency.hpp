// Decides whose memory is on one device when not everybody's fits. Pure: events and `now` go in, orders come out.
//
// Two levels: the arbiter shares the token (milliseconds) among *residents*, clients with all their movable memory on
// the device; this shares residency (seconds), and does nothing at all while everything fits. Otherwise a client that
// needs to run waits in a queue; its turn comes when a resident is idle or has had its epoch, and then as many bytes
// move as are missing, no more.
//
// An order is a client's allowance: how many bytes it may have on the device. A client is taken to hold the larger of
// its allowance and what it says it holds, and of every older allowance until it says that it has seen the new one.
// So the sum of what clients hold stays within the capacity at every instant, also while bytes move.
//
// Everything is settled anew with each message of a client, and a user may have a thousand: what concerns one client
// is decided by sums over all (`Sums`), never by a look at each.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arbiter/arbiter.hpp"
#include "arbiter/saturating.hpp"

namespace gemlet::arbiter {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct ResidencyParameters {
    double overhead = 0.02;  // share of the time that hand-overs of memory may cost: sets the length of an epoch
    Nanoseconds epoch_min = 500'000'000;
    Nanoseconds max_wait = 5'000'000'000;  // longest wait for the epochs of others
    Nanoseconds idle = 50'000'000;         // a resident idle for this long, or for two hand-overs, may have to go
    Nanoseconds stuck = 30'000'000'000;    // one that does not arrive within this is not waited for
    Nanoseconds slow = 3'000'000'000;      // ... nor one that has all its room and fills no tenth of it within this
    Nanoseconds answer = 1'000'000'000;    // one that does not say within this that it is there is passed by
    Nanoseconds hesitates = 250'000'000;   // ... and if not within this, those behind it are asked as well
    double bytes_per_ns = 25.0;            // before anything was measured
};

// Why a client may not have as many bytes as it asked for.
enum class Refusal : uint32_t {
    kNone = 0,
    kCapacity = 1,  // it alone would not fit on the device
    kResident = 2,  // ... or within its group's resident limit
    kHost = 3,      // the host has no room for what would have to move there
};

struct Order {
    ClientId client;
    uint64_t allowed;
    uint32_t number;
};

struct ResidencyUsage {
    ClientId client;
    uint64_t movable, mapped, allowed;
    bool resident, queued;
    uint64_t host;              // most bytes of it that may have to be on the host
    Nanoseconds epoch_end;      // kNever while nobody needs its place
    Nanoseconds last_handover;  // how long it took to bring it in last time; 0: never
    std::string reason;         // for people
};

class Residency {
  public:
    explicit Residency(ResidencyParameters parameters = {}) : p_(parameters) {}

    // Bytes of the device that clients may use in all; kUnlimited: no capacity was set.
    void set_capacity(uint64_t bytes, Nanoseconds now);
    // How long a client may have to wait for the epochs of others.
    void set_max_wait(Nanoseconds wait) { p_.max_wait = wait; }
    // Bytes of the host that evicted memory may take.
    void set_host(uint64_t bytes) { host_ = bytes; }
    // `resident`: bytes that the group's clients may have on the device in all. `share` weighs its epochs. Clients of
    // a `pinned` group go only where putting out all others would not do, and do not wait for others' epochs to end.
    void set_group(GroupId group, uint64_t resident, double share, Nanoseconds now, bool pinned = false);
    void remove_group(GroupId group);

    void add(ClientId client, GroupId group, Nanoseconds now);
    void remove(ClientId client, Nanoseconds now);  // its memory is gone from the device
    void leave(ClientId client, Nanoseconds now);   // it wants nothing more; its memory is still there

    // The client asks to have `bytes` of movable memory in all. Less than before is always granted.
    Refusal admit(ClientId client, uint64_t bytes, Nanoseconds now);
    // What a client that comes with memory (from a daemon that is gone) holds already, as it says. Others are bound
    // by no more of it than the client could have been admitted with now.
    void adopt(ClientId client, uint64_t bytes, uint64_t mapped, Nanoseconds now);
    // One that a daemon before had, with what it may have by then; it has yet to come. Others are bound as by
    // adopt(). Nothing is settled, for others may have to be made known before.
    void expect(ClientId client, GroupId group, uint64_t fixed, uint64_t movable, uint64_t mapped, Nanoseconds now);
    // All of them are known. If they say that more is on the host than it has room for, none of that binds others.
    void bind_expected();
    // It comes, as `client`.
    void come_back(ClientId before, ClientId client, GroupId group, Nanoseconds now);
    // What one may have on the device for all that is known, and has perhaps not: it says that it had it before this
    // daemon, or was allowed it and has not filled it, or does not obey. 0: nothing. The driver has less of it, and
    // no more than `confirmed`: from the next tick() on orders bind it at once, and the rest binds nobody, unless it
    // was allowed that just now. There may be a thousand of them at once.
    uint64_t only_presumed(ClientId client) const;
    void refute(ClientId client, uint64_t confirmed, Nanoseconds now);
    // Bytes on the device of a client that cannot move.
    void set_fixed(ClientId client, uint64_t bytes, Nanoseconds now);
    // What a client says: bytes on the device, the order it keeps to, and whether all it has is there.
    void report(ClientId client, uint64_t mapped, uint32_t seen, bool complete, Nanoseconds now);
    // The same of many clients, and their fixed bytes: one decision for all.
    struct Report {
        ClientId client;
        bool moves;  // the next three mean something
        uint64_t mapped;
        uint32_t seen;
        bool complete;
        uint64_t fixed;
    };
    void report(const std::vector<Report>& reports, Nanoseconds now);

    void request(ClientId client, Nanoseconds now);  // it has work
    void idle(ClientId client, Nanoseconds now);     // it has none

    bool resident(ClientId client) const;  // all its memory is on the device and may stay
    bool may_stay(ClientId client) const;  // no order to go: resident, or on its way to it
    // Within the limits that bind the client, and not those of other groups, which others may be beyond for ever.
    // Room for memory that cannot move, `bytes` more than is accounted for. False: it never fits.
    bool fits_fixed(ClientId client, uint64_t bytes) const;
    // Whether each other's memory would still fit if `bytes` of what the client can move could not move any more.
    bool fits_if_it_stays(ClientId client, uint64_t bytes) const;
    bool within(ClientId client) const;  // what clients hold, fixed memory included

    Nanoseconds next_event() const { return next_; }
    void tick(Nanoseconds now) { settle(now); }
    std::vector<Order> take_orders();

    uint64_t movable(ClientId client) const;    // bytes that it has in all
    uint64_t committed(ClientId client) const;  // bytes of its movable memory that it holds or may hold
    uint64_t held() const;                      // bytes that clients hold or may hold, fixed ones included
    uint64_t capacity() const { return capacity_; }
    uint64_t host_promised() const;
    uint64_t ceiling(ClientId client) const;  // the most it may ever have
    uint64_t host(ClientId client) const;     // the most of it that may have to be on the host
    std::vector<ResidencyUsage> usage(Nanoseconds now) const;

  private:
    // Of all members whose memory counts against one limit.
    struct Sums {
        size_t members = 0;
        Total fixed = 0, movable = 0, granted = 0, committed = 0;
        Total pinned = 0;      // granted to pinned ones
        uint64_t largest = 0;  // granted to one of them
        Total in = 0, pinned_in = 0;
        Total kept = 0;  // for what those that are in have just freed; while clients are let in
        // While orders are made: what is wanted; what is still to come back from members that were told to give it;
        // what those that are served before lack.
        Total target = 0, coming = 0, ahead = 0;
    };
    struct Group {
        uint64_t resident = kUnlimited;
        double share = 1.0;
        bool pinned = false;
        mutable Sums sums = {};  // as of refresh()
    };
    struct Member {
        GroupId group = 0;
        uint64_t movable = 0, fixed = 0;
        uint64_t granted = 0;    // of `movable`: the rest is only what it said when it was adopted
        uint64_t target = 0;     // what the policy wants it to have
        uint64_t allowed = 0;    // as last ordered
        uint64_t committed = 0;  // the most it may hold now
        uint64_t mapped = 0;     // as it says
        // Since it was allowed more: what it had when it last had a tenth of that more, and when that was.
        uint64_t filled = 0, tenth = 1;
        Nanoseconds got_on = 0;
        bool at_will = false;  // it asked for another amount instead of that: room that follows gives it no time
        uint32_t number = 0, seen = 0;
        std::optional<uint32_t> said_at;  // `number` when it said what it had: what it holds may be no more than that
        bool refuted = false;             // ... and the driver has less, and it does not obey
        bool in = false;                  // resident, or on its way
        bool complete = false;            // arrived, as it says
        bool active = false;              // has work
        bool gone = false;
        bool interrupted = false;     // it had work when it was put out: its epoch was over
        bool guest = false;           // it has had no turn: what it has, it has as long as nobody waits for the room
        uint64_t turn = 0;            // order of entry
        Nanoseconds entered = 0;      // when it was let in
        Nanoseconds epoch = 0;        // when it had arrived
        Nanoseconds queued = kNever;  // since when it waits
        Nanoseconds asked_at = kNever;  // whether it is there, for its turn has come
        bool ask = false;               // ... with the orders that follow
        bool asked_early = false;       // ... before its turn had come
        Nanoseconds idle_since = 0;
        Nanoseconds idles_for = 0;  // how long, once it was idle for longer than a moment: a moving average
        uint64_t had = 0;           // before it began to free some of it; 0 once that is given up, ...
        Nanoseconds freed_at = 0;   // ... then
        mutable uint64_t kept = 0;  // of Sums::kept
        uint64_t entry_bytes = 0;   // that had to move for its entry; 0 once it had arrived
        Nanoseconds handover = 0;   // how long its entries take, of the last two
        Nanoseconds last_handover = 0;
        uint64_t last_bytes = 0;            // ... that moved for it
        bool ahead = false;                 // it is among those whose lack is in Sums::ahead
        mutable const Group* of = nullptr;  // as of refresh(); none: its group is not known
    };
    using Members = std::map<ClientId, Member>;
    // A limit, and what counts against it.
    struct Scope {
        uint64_t limit = 0;
        bool is_group = false;  // else it is the whole device
        const Sums* sums = nullptr;
    };
    // Those of one member: of its group, if that has one, and of the device.
    struct Scopes {
        std::array<Scope, 2> all = {};
        size_t count = 0;
        void add(const Scope& scope) { all[count++] = scope; }
        const Scope* begin() const { return all.data(); }
        const Scope* end() const { return all.data() + count; }
    };
    // Bytes of members that are in and would be put out for one that is not.
    struct Leaving {
        Total on_device = 0, of_group = 0;
        void add(const Member& leaves, const Member& comes) {
            on_device += Total(leaves.movable) + leaves.kept;
            if (leaves.group == comes.group) of_group += Total(leaves.movable) + leaves.kept;
        }
        void take_back(const Member& leaves, const Member& comes) {
            on_device -= Total(leaves.movable) + leaves.kept;
            if (leaves.group == comes.group) of_group -= Total(leaves.movable) + leaves.kept;
        }
    };
    // One that has to wait, and what came in since: of all, and of its group.
    struct Head {
        const Member* member;
        bool hesitates = false;  // so that who comes next is asked by now: as many may be stopped
        Total since = 0, since_of_group = 0;
        void see(const Member& comes);
        bool makes_way(const Residency& all, const Member& comes) const;
    };
    // Who wants to be on the device: what the length of an epoch follows from.
    struct Demand {
        double shares = 0, count = 0, waiting = 0, largest = 0;
        double handover = 0;  // of those whose memory may have to move, the one that takes longest
        double kept = 0;      // of them, for how long one keeps its place for its coming took as long; by its share
    };

    // Makes the sums anew if something has changed since.
    void refresh() const;
    Scopes scopes_of(const Member& member) const;
    template <class Holds>
    bool in_all_scopes_of(ClientId client, Holds&& holds) const;
    std::vector<Scope> scopes() const;

    uint64_t may_be_granted(const Member& member) const;  // movable bytes, by the limits of the device
    // Whether anything is new.
    bool note(ClientId client, uint64_t mapped, uint32_t seen, bool complete, Nanoseconds now);
    bool note_fixed(ClientId client, uint64_t bytes);
    void settle(Nanoseconds now);
    void drop_what_no_longer_fits(Nanoseconds now);
    bool keeps(const Member& member, Nanoseconds now) const;
    void keep_what_was_freed(Nanoseconds now);
    void let_in(Nanoseconds now);
    void keep_what_fits();
    void publish(Nanoseconds now);

    static uint64_t room(const Scope& scope, const Member* asks = nullptr);  // for movable memory
    bool fits(const Member& member, const Leaving& without) const;           // with everybody in but those
    bool fits(const Member& member) const { return fits(member, Leaving()); }
    bool fits_alone(const Member& member) const;  // with nobody else in
    bool fits_beside_pinned(const Member& member) const;
    static bool holds_all(const Scope& scope);  // everything that counts against it
    bool everything_fits() const;
    bool pinned(const Member& member) const;
    double share_of(const Member& member) const;
    Demand demand() const;
    double handover_of(const Member& member) const;
    Nanoseconds epoch_length(const Member& member, const Demand& demand) const;
    Nanoseconds may_go_at(const Member& member, const Demand& demand, Nanoseconds now) const;
    Nanoseconds worth_waiting(const Member& member) const { return std::max(p_.idle, 2 * member.handover); }
    Nanoseconds gives_way_at(const Member& member, const Member& to, const Demand& demand, Nanoseconds now) const;
    uint64_t host_of(const Member& member, const Member* changed = nullptr, uint64_t movable = 0) const;
    std::vector<Member*> in_turn(std::vector<std::pair<ClientId, Member*>> queue) const;
    std::optional<std::vector<Member*>> who_goes_for(const Member& member, Nanoseconds now, Nanoseconds& soonest);
    bool is_there(Member& member, Nanoseconds now) const;
    void ask(Member& member, Nanoseconds now, bool early) const;
    bool is_passed_by(const Member& member, Nanoseconds now) const;
    bool share_a_limit(const Member& a, const Member& b) const;
    bool is_behind(const Member& member, const Member& head, Total of_heads) const;
    bool comes_after_another(const Member& member, Nanoseconds now) const;
    void set_in(Member& member, bool in);
    void put_out(Member& member, Nanoseconds now);
    void enter(Member& member, Nanoseconds now);
    static bool has_room(const Member& member);  // for all that it has, and does not fill it
    static void offer(Member& member, Nanoseconds now);
    bool gets_on(const Member& member, Nanoseconds now) const;
    void commit(Member& member);
    void order(ClientId client, Member& member, uint64_t allowed);
    static uint64_t coming(const Member& member);
    void count(Member& member, bool ahead);
    void discount(const Member& member);
    // Those that `member` counts among.
    template <class How>
    void for_sums_of(const Member& member, const How& how) const {
        how(device_);
        if (member.of) how(member.of->sums);
    }
    template <class How>
    void for_all_sums(const How& how) const {
        how(device_);
        for (const auto& [id, group] : groups_) how(group.sums);
    }

    ResidencyParameters p_;
    uint64_t capacity_ = kUnlimited, host_ = kUnlimited;
    std::map<GroupId, Group> groups_;
    Members members_;
    std::vector<Order> orders_;
    uint64_t turn_ = 0;
    bool limited_ = false;      // some limit was ever set
    mutable Sums device_ = {};  // as of refresh()
    mutable bool stale_ = true;
    Nanoseconds next_ = kNever;
};

}  // namespace gemlet::arbiter
