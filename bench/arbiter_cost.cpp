// How long the arbiter thinks at a hand-over: prints the nanoseconds from each stopped() of the holder to the next
// grant in hand, next_event() included. Arguments: policy, saturating clients, groups, decisions.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "arbiter/arbiter.hpp"

using namespace gemlet::arbiter;

namespace {

std::vector<Nanoseconds> decision_cost(const std::string& policy, uint32_t clients, uint32_t groups,
                                       uint32_t decisions) {
    Arbiter arbiter(policy, {});
    Nanoseconds now = 0;
    std::vector<GroupId> ids;
    for (uint32_t i = 0; i < groups; ++i) {
        ids.push_back(arbiter.set_group({.name = "group-" + std::to_string(i), .min = 0.5 / groups}, now));
    }
    for (uint32_t i = 0; i < clients; ++i) {
        arbiter.add_client(i, ids[i % groups], now);
        arbiter.request(i, now);
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
        arbiter.request(holder, now);
        if (grant.kind != Action::Kind::kGrant) find_grant();
    }
    return costs;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    const auto number = [&](int i) { return static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)); };
    for (const Nanoseconds cost : decision_cost(argv[1], number(2), number(3), number(4)))
        std::printf("%lld\n", static_cast<long long>(cost));
}
