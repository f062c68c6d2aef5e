// What the arbiter of one device knows, and the steps an event takes. Only arbiter.cpp and its parts (turns.cpp,
// sharing.cpp, parking.cpp) see it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "arbiter/arbiter.hpp"
#include "arbiter/client.hpp"
#include "arbiter/contention.hpp"
#include "arbiter/leases.hpp"
#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

struct Arbiter::State {
    State(const std::string& name, Parameters parameters)
        : p(parameters),
          policy(make_policy(name, parameters)),
          leases(*policy),
          contention(parameters),
          grace(policy->grace(parameters)) {}

    Parameters p;
    std::unique_ptr<Policy> policy;
    Leases leases;
    Contention contention;
    Nanoseconds grace;
    Nanoseconds clock = 0;
    Nanoseconds heard = 0;                         // when all who run last said what they did
    Nanoseconds observe_at = 0;                    // the next time
    std::vector<std::unique_ptr<Members>> groups;  // by slot; null where one was removed
    std::unordered_map<ClientId, std::unique_ptr<Client>> clients;
    std::unordered_map<GroupId, Members*> groups_by_id;
    std::vector<Client*> parked;
    GroupId last_group = 0;
    std::vector<Action> actions;
    bool demand_changed = false;
    Client* idle = nullptr;  // just stopped for want of work: its token is parked unless somebody waits
    uint64_t ignored = 0;
    uint64_t standings_changed = 0;
    Nanoseconds work_of_gone = 0;  // of clients that needed all multiprocessors
    Reservation reservation;
    uint64_t changes = 0;                           // of the groups that have clients
    Groups everyone;                                // the groups there are, without gaps
    Groups waiting, fitting, hurrying, contenders;  // scratch, kept for their memory
    std::vector<Lease*> lingering;                  // those that are charged for it; scratch of set_rates()
    struct Around {
        size_t running = 0;  // leases
        size_t loud = 0;     // groups that were busy of late
        bool trial = false;
        Groups asking, urgent;  // wait, or will in a moment; of the class latency and near their next request
        Groups apart;           // were busy of late, and do not run beside those that share
        std::vector<const Lease*> in_turns;
    } around;

    // Every event runs begin(), its own change, settle().
    Nanoseconds begin(Nanoseconds now);
    Nanoseconds begin_told(Nanoseconds now);
    void comes(Client& client);
    void forget(Members& group);
    void forget_removed();
    void settle(Nanoseconds now);
    void expire(Nanoseconds now);
    void update_demand(Nanoseconds now);
    void recount(Members& group);
    void client_count_changed();
    Client* find(ClientId id);
    Members* find_group(GroupId id) const;
    std::string reason(const Members& group, Nanoseconds now) const;
    // No honest client has more in flight; what it claims beyond that would be time that others get for nothing.
    Nanoseconds longest_tail() const { return std::max(p.grace, p.window_alone); }

    // turns.cpp: which client runs next, beside which others, and on what terms.
    void find_waiting();
    Client* next_of(Members& group) const;
    void raise_level(Members& group);
    void grant_while_possible(Nanoseconds now);
    void grant(Members& group, Nanoseconds latest, Nanoseconds now);
    Lease& lease_for(Client& client, Nanoseconds now);
    bool may_run(const Client& client) const;  // beside the clients that run now
    double in_its_way(const Client& client, bool parked_too) const;
    Nanoseconds last_deadline(Nanoseconds now) const;
    void look_round(Nanoseconds now);
    void update_terms(Nanoseconds now);
    void update_terms(Lease& lease, Nanoseconds now);
    Conditions conditions_for(const Lease& lease, Nanoseconds deadline, bool contended);
    Nanoseconds window_for(const Lease& lease, Nanoseconds deadline, bool contended);
    Nanoseconds believed(const Lease& lease, Nanoseconds drained) const;
    Nanoseconds work_beside(const Client& client) const;
    bool is_quiet(const Group& g) const { return !g.running && g.waiting == 0 && clock >= g.busy_at + p.quiet; }
    // A service that has had no request for long does not make its neighbours spin all night.
    bool expects_requests(const Group& g) const {
        return g.clients > 0 && (g.running || g.waiting > 0 || clock < g.busy_at + p.latency_quiet);
    }

    // slots.cpp: who may run in whose slot, and until when.
    bool admits(const Client& client) const;
    bool admits(const Group& group) const;
    bool contends_with(const Client& client, const Members& group) const;
    bool awaits_slot(const Client& client) const;
    bool waited_for(const Client& client) const;
    bool drains(const Client& client) const;
    bool ended(const Client& client) const;
    const Members* slot_owner() const;
    bool waits_for_peer(const Lease& lease, Nanoseconds now) const;
    void attend(const Lease& lease, Nanoseconds now);
    void admit_late_ranks(Nanoseconds now);
    Nanoseconds slot_end(const Lease& lease, Nanoseconds now) const;

    // sharing.cpp: which clients co-run, what is observed of them, what each is charged.
    void pin(Client& client) const;
    bool observing() const;
    void observe(Nanoseconds now);
    void observe_last(Lease& lease, Nanoseconds now);
    Rates observed(Lease& lease, Nanoseconds now);
    bool beside(const Lease& lease) const;
    bool trial(Nanoseconds now) const;  // a client that runs was released a moment ago
    void separate(Nanoseconds now);
    void set_rates(Nanoseconds now);
    void set_rates_of_lingering(size_t running);
    double use_of(const Lease& lease, size_t running, double presumed) const;

    // parking.cpp: tokens that their clients may take without asking.
    void park_or_not(Nanoseconds now);
    bool parks_beside(const Client& client) const;  // clients that run or whose tokens are parked
    bool by_right(const Client& client, Nanoseconds now) const;
    void keep_rights(const Group& group, Nanoseconds now);
    void make_room(const Lease& lease, Nanoseconds now);
    void unpark_in_the_way(uint64_t serial, Nanoseconds now);
    void take_parked(Client& client, uint64_t unparked_for, Nanoseconds now);
    void take_back(Lease& lease, Nanoseconds now);
    bool unpark(Client& client);  // whether it was parked
};

}  // namespace gemlet::arbiter
