// The default policy: a virtual time per group that advances by used / target, so that the group furthest behind
// its target runs next. docs/policies.md has the promises, the formulas and the measurements behind the constants.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "arbiter/policies/arrivals.hpp"
#include "arbiter/policies/cap.hpp"
#include "arbiter/policies/head_starts.hpp"
#include "arbiter/policies/policy.hpp"
#include "arbiter/policies/recently.hpp"
#include "arbiter/policies/water_level.hpp"

namespace gemlet::arbiter {
namespace {

// Groups whose targets are 0 (others are promised everything) are charged as if these came to this, all together.
constexpr double kLeastTarget = 0.01;
constexpr double kLongest = 1e18;  // ns: of sums that stay within a Nanoseconds
constexpr double kNoClaim = 1.0;   // ns: a claim of less is none, and so much is lost in rounding
// So many groups may come back from a pause in a row before hand-overs for them are rationed.
constexpr double kInterruptionsMost = 20.0;

// A group this close to its minimum has what it was promised; the rest is the cost of hand-overs.
constexpr double kNearMinimum = 0.8;
// Of what its minimum leaves to others one may wait this part for their turns. The rest is for what still runs then.
constexpr double kKeptWaiting = 0.5;

// Before a reservation no turn begins that would be too short to be worth a hand-over, nor is one cut to less for a
// minimum.
constexpr Nanoseconds kShort = 500'000;
// All reservations together keep at most so much of the time free.
constexpr double kReservedMost = 0.25;

Nanoseconds no_more_turns(const Arrivals::Expected& reserved) {
    return reserved.from == kNever ? kNever : reserved.from - kShort;
}

class Fair final : public Policy {
  public:
    explicit Fair(const Parameters& parameters)
        : p_(parameters), cycle_(p_.cycle_min), switch_cost_(p_.switch_cost) {}

    const Group* pick(const Groups& waiting, Nanoseconds now) override;
    Terms terms(const Turn& turn, const Groups& contenders, Nanoseconds now) override;

    void added(const Group& group, Nanoseconds now) override;
    void changed(const Group& group, Nanoseconds now) override;
    void demand(const Groups& all, Nanoseconds now) override;
    void granted(const Turn& turn, Nanoseconds now) override;
    void charge(const Group& group, Nanoseconds amount, Nanoseconds now) override;
    void stopped(const Turn& turn, StopReason reason, Nanoseconds now) override;

    Nanoseconds next_event(const Groups& waiting, Nanoseconds now) const override;
    double target(const Group& group) const override { return at(group).active ? at(group).target : 0.0; }
    double due(const Group& group) const override {
        const Account& a = at(group);
        if (!a.active) return -1.0;
        return a.best_effort ? a.target : a.rate;
    }
    std::string blocked(const Group& group, Nanoseconds now) const override;
    bool at_maximum(const Group& group, Nanoseconds now) override { return !ready(group, now); }
    bool may_park(const Group& group, Nanoseconds now) override { return ready(group, now); }
    bool may_interrupt(const Group& group, const Group& holder, Nanoseconds now) override {
        return preempts(group, holder, now) && ready(group, now);
    }
    bool hurries(const Group& group, const Groups& others, Nanoseconds now) override {
        return in_hurry(group) && !takes_a_minimum(group, others, now);
    }
    bool owed(const Group& group, Nanoseconds now) const override { return group.waiting > 0 && is_owed(group, now); }
    bool behind(const Group& group) const override {
        return at(group).vtime < system_[best_effort(group)] + static_cast<double>(cycle_);
    }
    void turns_begin(const Groups& all, Nanoseconds now) override;
    void switch_cost(Nanoseconds cost) override { switch_cost_ = cost; }
    bool keeps_slots() const override { return true; }
    bool open() const override { return p_.open; }

  private:
    struct Account {
        bool best_effort = false;  // its class, whose virtual time it keeps
        double vtime = 0.0;        // ns of device time used per unit of target
        double turn_end = 0.0;     // virtual time at which its current or last turn ends
        double first_until = 0.0;  // up to this virtual time it goes before the others: it was idle
        double may_hurry = 0.0;    // from this virtual time of the device on
        double target = 0.0;
        double rate = kLeastTarget;  // its target, or as what it is charged if that is next to nothing
        bool active = false;         // wants, as of the last demand()
        bool counts = false;         // has a target: wants, or ran ahead of its share and the others now catch up
        bool contended = false;      // turn_end means something: its current or last turn had contenders
        // Best effort with a minimum: what it may still claim of it. Above 0 it competes, else it takes what is left.
        double claim = 0.0;
        Nanoseconds claim_at = 0;
        Recently recently;
        Recently waited;     // while it could have run, and no client of it did
        bool waits = false;  // ... as of `looked`
        Nanoseconds looked = 0;
        Arrivals arrivals;               // of a latency client
        bool paused = true;              // its last turn ended for want of work, not because it was late to stop
        double sm = 1.0;                 // fraction of the multiprocessors, as of the last demand()
        Nanoseconds too_long_until = 0;  // no turn before this: it would not end in time for a latency client
        mutable Cap cap;                 // sliding is bookkeeping, not a change
    };

    Account& at(const Group& group) const { return accounts_[group.slot]; }
    void begin(Account& a, bool best_effort) const;
    // Where it stands in the order of turns.
    double place_of(const Account& a) const {
        return a.vtime < a.first_until ? a.vtime - static_cast<double>(cycle_) : a.vtime;
    }
    // The slots of its gang keep a group to its maximum, on all devices at the same time.
    bool ready(const Group& group, Nanoseconds now) const { return group.planned > 0.0 || at(group).cap.ready(now); }
    static bool best_effort(const Group& group) { return group.spec.priority == Priority::kBestEffort; }

    Nanoseconds cycle_for(size_t parties) const;
    double next_turn_end(const Account& a) const;
    bool may_cut_in(const Group& group, Nanoseconds now);
    Arrivals::Expected reserved(const Group& group, Nanoseconds now) const;
    bool held_back(const Group& group, Nanoseconds now) const;
    void find_clocks(const Groups& all, Nanoseconds now);
    // What is kept free comes out of nobody's minimum.
    bool short_of_minimum(const Group& group, Nanoseconds now) const {
        return at(group).recently.share(now) < group.spec.min;
    }
    void set_targets(const Groups& all);
    double full_claim(const Group& group) const { return group.spec.min * static_cast<double>(cycle_); }
    void accrue_claim(const Group& group, Nanoseconds now);
    bool competes(const Group& group, Nanoseconds now);  // not one that only takes what is left
    // A latency client goes before everyone as long as it is not ahead of its target by more than the longest cycle:
    // the minima of the others hold against it too. One whose turn was cut for those has its next one in order:
    // whether it is ahead changes every few milliseconds, and each time one would cut the other's turn.
    bool in_hurry(const Group& group) const {
        return group.spec.priority == Priority::kLatency && at(group).paused && system_[0] >= at(group).may_hurry &&
               at(group).vtime <= system_[0] + static_cast<double>(p_.cycle_max);
    }
    bool preempts(const Group& group, const Group& holder, Nanoseconds now) const;
    // Of the last second it has had more than its share, and the other less than its minimum.
    bool takes_minimum(const Group& group, const Group& of, Nanoseconds now) const {
        return has_more(group, now) && short_of_minimum(of, now);
    }
    bool takes_a_minimum(const Group& group, const Groups& others, Nanoseconds now) const {
        return has_more(group, now) && std::any_of(others.begin(), others.end(), [&](const Group* other) {
                   return other != &group && !best_effort(*other) && short_of_minimum(*other, now);
               });
    }
    bool has_more(const Group& group, Nanoseconds now) const {
        return at(group).recently.share(now) > at(group).target;
    }
    void look(const Group& group, bool waits, Nanoseconds now);
    // Part of the last second in which it waited for others, of what its minimum leaves to them.
    double kept_waiting(const Group& group, Nanoseconds now) const {
        const Account& a = at(group);
        if (group.spec.min <= 0.0 || group.planned > 0.0 || !a.active) return 0.0;
        const double left = std::max(1.0 - group.spec.min, kLeastTarget);
        return a.waited.share(now, a.waits ? now - a.looked : 0) / left;
    }
    // One that keeps the device busy has its minimum by its turns. One that pauses would wait for the turn of another
    // each time that it comes back, so it goes before the others if it has waited for long of late. One that has as
    // much of the device as its minimum is owed nothing, however long it waited: it would go before those that are.
    bool is_owed(const Group& group, Nanoseconds now) const {
        return at(group).paused && short_of_minimum(group, now) && kept_waiting(group, now) > kKeptWaiting;
    }
    enum class Class { kClaims, kHurries, kIsOwed, kInTurn, kTakesWhatIsLeft };
    Class class_of(const Group& group, const Groups& others, Nanoseconds now);
    void settle_debts(const Groups& groups);
    // No less than two of the shortest turns cost, or many groups with small targets would have theirs for nothing.
    double debt_max(const Account& a) const {
        return std::max(static_cast<double>(p_.debt_max), 2.0 * static_cast<double>(p_.quantum_min) / a.rate);
    }

    Parameters p_;
    mutable std::vector<Account> accounts_;
    std::vector<Share> shares_, rest_;  // kept for their memory
    std::vector<Account*> wanting_, wanting_rest_;
    std::vector<size_t> clocks_;  // slots of latency groups that keep a period
    Nanoseconds cycle_;
    Nanoseconds switch_cost_;
    // Turns of others that may be cut short for groups that come back from a pause.
    double interruptions_ = kInterruptionsMost;
    Nanoseconds interruptions_at_ = 0;
    HeadStarts head_starts_;
    bool turns_ = false;       // somebody takes turns
    bool first_turn_ = false;  // who ran when turns began goes on, and no turn was granted since
    // Virtual time of the device: the smallest of the groups that have work, never backwards. Best effort has its
    // own: what it gets when others pause says nothing about its claim beside them.
    double system_[2] = {0.0, 0.0};
};

Nanoseconds Fair::cycle_for(size_t parties) const {
    const double wanted = static_cast<double>(parties) * static_cast<double>(switch_cost_) / p_.switch_loss;
    const double cycle = std::clamp(wanted, static_cast<double>(p_.cycle_min), static_cast<double>(p_.cycle_max));
    // A whole number of them in a second: then any second holds as many turns of everyone as any other.
    constexpr double kSecond = 1e9;
    return static_cast<Nanoseconds>(cycle < kSecond ? kSecond / std::floor(kSecond / cycle) : cycle);
}

void Fair::added(const Group& group, Nanoseconds now) {
    if (accounts_.size() <= group.slot) accounts_.resize(group.slot + 1);
    at(group) = Account{};
    begin(at(group), best_effort(group));
    const double cycle = static_cast<double>(p_.cycle_max);
    const bool latency = group.spec.priority == Priority::kLatency;
    at(group).may_hurry = latency ? head_starts_.next(system_[0], cycle) : system_[0] + cycle;
    at(group).claim_at = now;
    at(group).cap.reset(group.spec.max, p_.cap_block, now);
}

// The two classes have virtual times of their own: to go on with that of the other would be a claim, or a debt, of
// minutes.
void Fair::begin(Account& a, bool best_effort) const {
    a.best_effort = best_effort;
    a.vtime = a.turn_end = a.first_until = system_[best_effort];
    a.contended = false;
}

void Fair::changed(const Group& group, Nanoseconds now) {
    at(group).cap.change(group.spec.max, p_.cap_block, now);
    at(group).cap.accrue(at(group).active, now);
    at(group).claim = std::min(at(group).claim, 0.0);
}

void Fair::set_targets(const Groups& all) {
    // What best effort is guaranteed comes off first; what the others leave of the rest is divided among them.
    double widest = 0.0, together = 0.0;
    for (const Group* g : all) {
        if (!at(*g).counts) continue;
        widest = std::max(widest, g->sm);
        together += g->sm;
    }
    // Slices that all fit together do not compete. Otherwise the targets count only on what surely fits, as many at a
    // time as of the widest: which mixtures of slices fill a device is a packing problem, and a target that no
    // packing reaches would starve the others. What fits beyond that is extra for everyone.
    const bool all_fit = together <= 1.0 + 1e-9;
    const double share_of_device = widest > 0.0 ? 1.0 / std::floor(1.0 / widest + 1e-9) : 1.0;
    shares_.clear(), rest_.clear(), wanting_.clear(), wanting_rest_.clear();
    double minima = 0.0, promised = 0.0;
    for (const Group* g : all) {
        if (!at(*g).counts) continue;
        const double cost = all_fit ? g->sm : share_of_device;
        auto& shares = best_effort(*g) ? rest_ : shares_;
        auto& wanting = best_effort(*g) ? wanting_rest_ : wanting_;
        shares.push_back({.min = g->spec.min, .max = g->spec.max, .weight = g->spec.weight, .cost = cost});
        wanting.push_back(&at(*g));
        minima += cost * g->spec.min;
        if (best_effort(*g)) promised += cost * g->spec.min;
    }
    const double scale = minima > 1.0 ? 1.0 / minima : 1.0;
    for (Share& s : rest_) s.min *= scale;
    fill_to_level(shares_, 1.0 - promised * scale);
    double taken = 0.0;
    for (const Share& s : shares_) taken += s.cost * s.target;
    fill_to_level(rest_, std::max(0.0, 1.0 - taken));
    const auto tell = [](const std::vector<Share>& shares, const std::vector<Account*>& accounts) {
        const double least = kLeastTarget / static_cast<double>(shares.size());
        for (size_t i = 0; i < shares.size(); ++i) {
            accounts[i]->target = shares[i].target;
            accounts[i]->rate = std::max(shares[i].target, least);
        }
    };
    tell(shares_, wanting_);
    tell(rest_, wanting_rest_);
}

void Fair::demand(const Groups& all, Nanoseconds now) {
    double slowest[2] = {INFINITY, INFINITY};
    for (const Group* g : all) {
        double& least = slowest[best_effort(*g)];
        const bool known = at(*g).active && at(*g).best_effort == best_effort(*g);
        if (known && g->planned <= 0.0 && at(*g).cap.ready(now)) least = std::min(least, at(*g).vtime);
        accrue_claim(*g, now);
    }
    for (const int kind : {0, 1}) {
        if (std::isfinite(slowest[kind])) system_[kind] = std::max(system_[kind], slowest[kind]);
    }
    size_t wanting = 0;
    const auto parties = std::count_if(all.begin(), all.end(), [&](const Group* g) { return at(*g).active; });
    for (const Group* g : all) {
        Account& a = at(*g);
        if (a.best_effort != best_effort(*g)) begin(a, best_effort(*g));
        const bool wants = g->wants(now);
        const double cycle = static_cast<double>(cycle_);
        const double system = system_[best_effort(*g)];
        if (wants && !a.active) {
            // Back from idle, a group has nothing saved up (which would come out of the minima of the groups that
            // stayed) and no debt for ever, but for the first cycle's worth it goes before the others.
            a.vtime = std::clamp(a.vtime, system, system + debt_max(a));
            if (g->spec.priority == Priority::kLatency && a.paused) a.arrivals.note(now);
            a.first_until = parties > 0 && !may_cut_in(*g, now) ? system : system + cycle;
            a.contended = false;
            a.claim_at = now;
        }
        // A group that its maximum holds back falls behind without end; that does not give it a claim against the
        // others.
        if (a.active) a.vtime = std::max(a.vtime, system - cycle);
        // Nor does a gang whose slots were shorter than its share, for they crossed those of others.
        if (g->planned > 0.0) a.vtime = a.first_until = system;
        if (wants != a.active) a.cap.accrue(wants, now);
        a.active = wants;
        look(*g, g->waiting > 0 && !g->running && ready(*g, now), now);
        wanting += wants;
        // A short job runs at once and undivided, ahead of its share. Until the others have caught up it counts as if
        // it still ran at its share; else the time it took would be missing from the minima of the others.
        const double ahead = a.vtime - system;
        a.counts = wants || (!best_effort(*g) && ahead > 0.0 && ahead <= 2.0 * static_cast<double>(p_.cycle_max));
    }
    set_targets(all);
    find_clocks(all, now);
    cycle_ = cycle_for(wanting);
}

void Fair::find_clocks(const Groups& all, Nanoseconds now) {
    clocks_.clear();
    double cost = 0.0;
    for (const Group* g : all) {
        Account& a = at(*g);
        a.sm = g->sm;
        if (g->spec.priority != Priority::kLatency || !g->exclusive || a.arrivals.next(now).from == kNever) continue;
        const double more = a.arrivals.cost(p_.expect_early + kShort);
        if (cost + more > kReservedMost) continue;
        clocks_.push_back(g->slot);
        cost += more;
    }
}

// A short job that comes after a pause runs at once, which costs two hand-overs. A group that comes back a hundred
// times a second would pay for them with everyone's time, so it waits for its turn like groups that never pause,
// unless its pauses keep it from its minimum.
bool Fair::may_cut_in(const Group& group, Nanoseconds now) {
    Account& a = at(group);
    if (a.recently.share(now) < kNearMinimum * group.spec.min) return true;
    const double cost = 2.0 * static_cast<double>(switch_cost_);
    const double earned = static_cast<double>(now - interruptions_at_) * p_.interrupt_loss / std::max(cost, 1.0);
    interruptions_ = std::min(kInterruptionsMost, interruptions_ + earned);
    interruptions_at_ = now;
    if (interruptions_ < 1.0) return false;
    interruptions_ -= 1.0;
    return true;
}

// Turns end on a grid of cycles, so a turn that was too long shortens the next one and the other way round. The order
// of turns follows the grid too: if it followed what was really used, a few microseconds would make groups change
// places from cycle to cycle, and a second would have a whole turn more or less of one.
double Fair::next_turn_end(const Account& a) const {
    const double cycle = static_cast<double>(cycle_);
    const double start = a.contended && a.turn_end > a.vtime - cycle ? a.turn_end : a.vtime;
    const double end = std::min(start + cycle, a.vtime + 2.0 * cycle);
    return end < a.vtime + cycle / 2.0 ? end + cycle : end;
}

void Fair::accrue_claim(const Group& group, Nanoseconds now) {
    Account& a = at(group);
    if (!best_effort(group) || group.spec.min <= 0.0) return;
    const double most = full_claim(group);
    const double gained = a.active ? group.spec.min * static_cast<double>(now - a.claim_at) : 0.0;
    // The time that others left is no debt for long, but a turn that it claimed is paid for: no turn is shorter.
    const double debt = std::max(2.0 * most, static_cast<double>(p_.quantum_min));
    a.claim = std::clamp(a.claim + gained, -debt, 2.0 * most);
    a.claim_at = now;
}

bool Fair::competes(const Group& group, Nanoseconds now) {
    if (!best_effort(group)) return true;
    accrue_claim(group, now);
    const double most = full_claim(group);
    // To start it takes a whole cycle's worth, to go on anything.
    return most > kNoClaim && at(group).claim >= (group.running ? 0.0 : most - kNoClaim);
}

bool Fair::preempts(const Group& group, const Group& holder, Nanoseconds now) const {
    return in_hurry(group) && holder.spec.priority != Priority::kLatency && !takes_minimum(group, holder, now);
}

void Fair::settle_debts(const Groups& groups) {
    double slowest[2] = {INFINITY, INFINITY};
    for (const Group* g : groups) slowest[best_effort(*g)] = std::min(slowest[best_effort(*g)], at(*g).vtime);
    for (const Group* g : groups) {
        const double most = slowest[best_effort(*g)] + debt_max(at(*g));
        at(*g).vtime = std::min(at(*g).vtime, most);
    }
}

// A client that keeps a period finds the device free: the others' turns end just before. Work in flight would go
// ahead of it, and nothing can interrupt a kernel that runs.
Arrivals::Expected Fair::reserved(const Group& group, Nanoseconds now) const {
    Arrivals::Expected soonest{kNever, kNever};
    if (group.planned > 0.0) return soonest;  // its slots are decided elsewhere
    if (clocks_.empty() || group.spec.priority == Priority::kLatency || short_of_minimum(group, now)) return soonest;
    for (const size_t slot : clocks_) {
        const Account& a = accounts_[slot];
        if (a.active || a.sm + group.sm <= 1.0 + 1e-9) continue;  // it is there, or fits beside
        const Arrivals::Expected next = a.arrivals.next(now);
        if (next.from != kNever && next.from - p_.expect_early < soonest.from)
            soonest = {next.from - p_.expect_early, next.until};
    }
    return soonest;
}

bool Fair::held_back(const Group& group, Nanoseconds now) const {
    if (now >= no_more_turns(reserved(group, now))) return true;
    return now < at(group).too_long_until && group.spec.priority != Priority::kLatency &&
           !short_of_minimum(group, now);
}

// What one got more than another while they co-ran is not a debt, except for the last moment: so long it may have
// taken until some client was seen to be in danger, and until all that must stop had drained.
void Fair::turns_begin(const Groups& all, Nanoseconds now) {
    const bool turns = std::any_of(all.begin(), all.end(), [](const Group* g) { return g->exclusive; });
    first_turn_ = !std::exchange(turns_, turns) && turns;
    double least[2] = {INFINITY, INFINITY};
    for (const Group* g : all)
        if (at(*g).active) least[best_effort(*g)] = std::min(least[best_effort(*g)], at(*g).vtime);
    for (const Group* g : all) {
        Account& a = at(*g);
        if (!a.active) continue;
        const double lowest = least[best_effort(*g)];
        a.vtime = a.turn_end = a.first_until =
            std::clamp(a.vtime, lowest, lowest + static_cast<double>(p_.cycle_max) / 2.0);
        a.contended = false;
    }
}

// Who goes before whom. What it says of those who wait must not depend on who runs, or a turn would be cut for one
// that is not the next.
Fair::Class Fair::class_of(const Group& group, const Groups& others, Nanoseconds now) {
    if (best_effort(group) && competes(group, now)) return Class::kClaims;
    if (hurries(group, others, now)) return Class::kHurries;
    if (is_owed(group, now)) return Class::kIsOwed;
    return best_effort(group) ? Class::kTakesWhatIsLeft : Class::kInTurn;
}

const Group* Fair::pick(const Groups& waiting, Nanoseconds now) {
    settle_debts(waiting);
    const Group* best = nullptr;
    Class best_class{};
    double best_place = INFINITY;
    for (const Group* g : waiting) {
        Account& a = at(*g);
        if (!ready(*g, now) || held_back(*g, now)) continue;
        const Class service_class = class_of(*g, waiting, now);
        const double place = a.vtime < a.first_until ? place_of(a) : next_turn_end(a);
        const bool earlier = place < best_place || (place == best_place && g->waiting_since < best->waiting_since);
        if (!best || service_class < best_class || (service_class == best_class && earlier)) {
            best = g, best_class = service_class, best_place = place;
        }
    }
    return best;
}

void Fair::look(const Group& group, bool waits, Nanoseconds now) {
    Account& a = at(group);
    if (a.waits) a.waited.add(now - a.looked, now);
    a.waits = waits;
    a.looked = now;
}

void Fair::granted(const Turn& turn, Nanoseconds now) {
    Account& a = at(*turn.group);
    look(*turn.group, false, now);
    a.turn_end = next_turn_end(a);
    a.contended = true;
    first_turn_ = false;
}

Terms Fair::terms(const Turn& turn, const Groups& contenders, Nanoseconds now) {
    const Group& own = *turn.group;
    Account& a = at(own);
    const Nanoseconds capped = a.cap.binds() && own.planned <= 0.0 ? now + a.cap.runway(now) : kNever;
    const Nanoseconds earliest = turn.granted + p_.quantum_min;
    Terms result{.deadline = capped};
    if (const Arrivals::Expected next = reserved(own, now); next.from > now)
        result.deadline = std::min(result.deadline, next.from);
    uint32_t rotating = 0;
    double slowest = INFINITY, slowest_behind = INFINITY;
    const bool claims = best_effort(own) && competes(own, now);
    const double claimed = claims ? a.claim / std::max(1.0 - own.spec.min, kLeastTarget) : 0.0;
    // It has its own minimum, and so no right to the time of one that has not.
    const bool owes = kept_waiting(own, now) <= 1.0 && class_of(own, contenders, now) > Class::kIsOwed;
    for (const Group* g : contenders) {
        if (g == &own) {
            rotating = g->waiting;
            continue;
        }
        if (!ready(*g, now)) continue;
        result.contended = true;
        // One whose own turn was just cut will say so if it wants more: nobody is in a hurry for it yet.
        if (owes && g->waiting > 0 && is_owed(*g, now)) {
            result.deadline = std::min(result.deadline, std::max(turn.granted + kShort, now));
        } else if (preempts(*g, own, now) && (g->running || (g->waiting > 0 && hurries(*g, contenders, now)))) {
            // A guaranteed minimum is worth a moment even to those in a hurry.
            result.deadline = std::min(result.deadline, claims ? std::max(earliest, now) : now);
        } else if (best_effort(own) && !best_effort(*g)) {
            result.deadline = std::min(result.deadline, std::max(earliest, now + static_cast<Nanoseconds>(claimed)));
        } else if (best_effort(*g) && !best_effort(own)) {
            if (competes(*g, now)) result.deadline = std::min(result.deadline, std::max(earliest, now));
        } else {
            // Several that came back at the same time are not in each other's way: each has its turn.
            const Account& other = at(*g);
            // Of best effort, those that take what is left come after one that claims its minimum, however long ago
            // they ran.
            double& least = claims && !competes(*g, now) ? slowest_behind : slowest;
            least = std::min(least, a.vtime < a.first_until ? other.vtime : place_of(other));
        }
    }
    const bool goes_first = std::isinf(slowest) && std::isfinite(slowest_behind);
    if (goes_first) slowest = slowest_behind;
    if (std::isfinite(slowest)) {
        const double cycle = static_cast<double>(cycle_);
        // After its turn the first is ahead of the others by half a cycle, after theirs as far behind: not ahead by a
        // whole one for as long as they take turns. Of what it had less than they while they shared it makes up half,
        // for seconds count that begin before that time and such that begin after it. What all do until they have
        // drained belongs to it.
        if (first_turn_ && (!a.contended || turn.part < 1.0))
            a.turn_end = (a.vtime + std::max(a.vtime, slowest) + cycle) / 2.0;
        else if (!a.contended)
            a.turn_end = a.vtime + cycle;
        a.contended = true;
        // Not before it has caught up with the furthest behind of the others: it would be picked again at once.
        if (a.turn_end > slowest + 1.25 * cycle) a.turn_end = slowest + cycle;  // more than jitter on the grid
        a.turn_end = std::max(a.turn_end, slowest);
        // A group in a hurry would come back at once, so it goes on for as long as it would go before the others.
        if (own.spec.priority == Priority::kLatency && !takes_a_minimum(own, contenders, now))
            a.turn_end = std::max(a.turn_end, system_[0] + static_cast<double>(p_.cycle_max));
        const double in_turn = std::max(0.0, a.turn_end - a.vtime) * a.rate / turn.part;
        const double left = goes_first ? std::max(claimed, in_turn) : in_turn;
        result.deadline = std::min(result.deadline, std::max(earliest, now + static_cast<Nanoseconds>(left)));
    } else {
        a.contended = false;
        if (rotating > 0) {  // only its own clients wait: they take turns
            const Nanoseconds quantum = cycle_for(rotating + 1) / (rotating + 1);
            result.deadline = std::min(result.deadline, turn.granted + std::max(quantum, p_.quantum_min));
        }
    }
    result.contended |= rotating > 0;
    return result;
}

void Fair::charge(const Group& group, Nanoseconds amount, Nanoseconds now) {
    Account& a = at(group);
    accrue_claim(group, now);
    a.recently.add(amount, now);
    a.vtime += static_cast<double>(amount) / a.rate;
    a.claim -= static_cast<double>(amount);
    if (a.cap.binds()) a.cap.use(amount, now);
}

void Fair::stopped(const Turn& turn, StopReason reason, Nanoseconds now) {
    Account& a = at(*turn.group);
    a.paused = reason == StopReason::kIdle || reason == StopReason::kExit;
    // It stopped before a reservation, so its next kernel does not fit. One whose kernels never fit stops as soon as
    // it has begun; to hold that back would cost it its share and gain nobody anything.
    const Arrivals::Expected next = reserved(*turn.group, now);
    const bool fits_at_times = now - turn.granted >= p_.quantum_min / 2;
    if (reason == StopReason::kDeadline && next.from != kNever && turn.deadline >= next.from && fits_at_times)
        a.too_long_until = next.until;
    if (!a.contended) a.turn_end = a.vtime;
}

Nanoseconds Fair::next_event(const Groups& waiting, Nanoseconds now) const {
    Nanoseconds next = kNever;
    for (const Group* g : waiting) {
        Account& a = at(*g);
        if (const Arrivals::Expected expected = reserved(*g, now); now >= no_more_turns(expected))
            next = std::min(next, expected.until);
        if (a.too_long_until > now) next = std::min(next, a.too_long_until);
        if (a.cap.binds() && !ready(*g, now)) next = std::min(next, a.cap.ready_at(now));
        if (best_effort(*g) && g->spec.min > 0.0) {
            const double missing = full_claim(*g) - a.claim;
            // The claim of a group that is held back is not considered, although it goes on growing.
            const Nanoseconds claims =
                a.claim_at + static_cast<Nanoseconds>(std::clamp(missing / g->spec.min, 1.0, kLongest));
            if (full_claim(*g) > kNoClaim && missing > kNoClaim && claims > now) next = std::min(next, claims);
        }
    }
    return next;
}

std::string Fair::blocked(const Group& group, Nanoseconds now) const {
    Account& a = at(group);
    if (ready(group, now))
        return held_back(group, now) ? "makes room for a latency client that comes as regularly as a clock" : "";
    if (group.spec.max <= 0.0) return "its maximum is 0: it never runs";
    char text[96];
    std::snprintf(text, sizeof text, "at its maximum of %g%%: runs again in %.0f ms", 100.0 * group.spec.max,
                  std::ceil(static_cast<double>(a.cap.ready_at(now) - now) / 1e6));
    return text;
}

}  // namespace

std::unique_ptr<Policy> make_fair(const Parameters& parameters) {
    return std::make_unique<Fair>(parameters);
}

}  // namespace gemlet::arbiter
