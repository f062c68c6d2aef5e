// What the arbiter of one device knows, and the steps an event takes. Only arbiter.cpp and its parts (parking.cpp,
// side_by_side.cpp) see it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "arbiter/arbiter.hpp"
#include "arbiter/client.hpp"
#include "arbiter/holds.hpp"
#include "arbiter/pairs.hpp"
#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {

inline constexpr double kFull = 1.0 + 1e-9;

struct Arbiter::State {
    State(const std::string& name, Parameters parameters)
        : p(parameters),
          policy(make_policy(name, parameters)),
          holds(*policy),
          pairs(parameters),
          grace(policy->grace(parameters)) {}

    Parameters p;
    std::unique_ptr<Policy> policy;
    Holds holds;
    Pairs pairs;
    Nanoseconds grace;
    Nanoseconds clock = 0;
    std::vector<std::unique_ptr<Members>> groups;  // by slot; null where one was removed
    std::unordered_map<ClientId, std::unique_ptr<Client>> clients;
    std::vector<Client*> parked;
    GroupId last_group = 0;
    std::vector<Action> actions;
    bool demand_changed = false;
    Client* idle = nullptr;  // just stopped for want of work: its token is parked unless somebody waits
    uint64_t ignored = 0;
    Groups everyone;                      // the groups there are, without gaps
    Groups waiting, fitting, contenders;  // scratch, kept for their memory

    // Every event runs begin(), its own change, settle().
    Nanoseconds begin(Nanoseconds now);
    void settle(Nanoseconds now);

    void expire(Nanoseconds now);
    void update_demand(Nanoseconds now);
    void grant_while_possible(Nanoseconds now);
    void grant(Members& group, Nanoseconds latest, Nanoseconds now);
    std::vector<Hold*> companions(const Client& client);
    Nanoseconds together_for(const std::vector<Hold*>& others, const Client& client, Nanoseconds now);
    const Group* untried(const Group& next);
    bool grant_beside(Members& group, Nanoseconds now);
    void join(Hold& hold, Nanoseconds now);
    bool goes_with(const Members& a, const Members& b) const;
    bool joins(const Members& group, const Hold& hold);
    void run_beside(Hold& hold, const std::vector<Hold*>& others, Nanoseconds length, Nanoseconds now);
    bool fell_short(const Hold& hold, Nanoseconds end, Nanoseconds now);
    void measure(const Hold& hold, StopReason reason, Nanoseconds now);
    Pairs::Member member(const Group& group, const Group& other) const;
    void update_terms(Nanoseconds now);
    void update_terms(Hold& hold, Nanoseconds now);
    void park_or_not(Nanoseconds now);
    void make_room(const Hold& hold, Nanoseconds now);
    void take_parked(Client& client, uint64_t unparked_for, Nanoseconds now);
    void take_back(Hold& hold, Nanoseconds now);
    bool unpark(Client& client);  // whether it was parked
    bool by_right(const Group& group, Nanoseconds now) const;
    void keep_rights(const Group& group, Nanoseconds now);
    void keep_partner(const Group& group, const GroupSpec& before, Nanoseconds now);
    double parked_sm() const;

    Hold& hold_for(Client& client, Nanoseconds now);
    Nanoseconds believed(const Hold& hold, Nanoseconds drained) const;
    Nanoseconds window_for(const Hold& hold, Nanoseconds deadline);
    // A service that has had no request for long does not make its neighbours spin all night.
    bool expects_requests(const Group& g) const {
        return g.clients > 0 && (g.running || g.waiting > 0 || clock < g.busy_at + p.latency_quiet);
    }
    // No honest client has more in flight; what it claims beyond that would be time that others get for nothing.
    Nanoseconds longest_tail() const { return std::max(p.grace, p.window_alone); }
    void find_waiting();
    void recount(Members& group);
    void client_count_changed();
    Client* next_of(Members& group) const;
    double sm_of_next(const Group& group) const { return next_of(*groups[group.slot])->sm; }
    Client* find(ClientId id);
    Members* find_group(GroupId id);
    std::string reason(const Members& group, Nanoseconds now) const;
};

}  // namespace gemlet::arbiter
