#include "module/decision_cost.hpp"

#include <chrono>
#include <stdexcept>

namespace gemlet::arbiter {

std::vector<Nanoseconds> decision_cost(const std::string& policy, uint32_t clients, uint32_t groups,
                                       uint32_t decisions) {
    if (clients == 0 || groups == 0) throw std::invalid_argument("clients, groups: at least one");
    Arbiter arbiter(policy, {});
    Nanoseconds now = 0;
    std::vector<GroupId> ids;
    for (uint32_t i = 0; i < groups; ++i) {
        ids.push_back(arbiter.set_group({.name = "group-" + std::to_string(i), .min = 0.5 / groups}, now));
    }
    for (uint32_t i = 0; i < clients; ++i) {
        arbiter.add_client(i, ids[i % groups], now);
        arbiter.want(i, now);
    }
    Action grant{Action::Kind::kPark, 0};
    const auto find_grant = [&] {
        for (const Action& action : arbiter.take_actions()) {
            if (action.kind == Action::Kind::kGrant) grant = action;
        }
    };
    find_grant();
    std::vector<Nanoseconds> costs;
    costs.reserve(decisions);
    for (uint32_t i = 0; i < decisions && grant.kind == Action::Kind::kGrant; ++i) {
        const ClientId holder = grant.client;
        now = grant.deadline == kNever ? now + 1'000'000 : grant.deadline;
        grant.kind = Action::Kind::kPark;
        const auto start = std::chrono::steady_clock::now();
        arbiter.stopped(holder, StopReason::kDeadline, 0, now);
        find_grant();
        volatile Nanoseconds next = arbiter.next_event();
        const auto end = std::chrono::steady_clock::now();
        (void)next;
        costs.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
        arbiter.drained(holder, now, now);
        arbiter.want(holder, now);
        if (grant.kind != Action::Kind::kGrant) find_grant();
    }
    return costs;
}

}  // namespace gemlet::arbiter
