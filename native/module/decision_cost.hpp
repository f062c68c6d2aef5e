// How long the arbiter thinks: wall time of hand-overs, for bench/arbiter_latency.py.
#pragma once

#include <string>
#include <vector>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

// `clients` saturating clients in `groups` groups. One number per hand-over: the nanoseconds from the holder's
// stopped() to the next grant in hand, next_event() included.
std::vector<Nanoseconds> decision_cost(const std::string& policy, uint32_t clients, uint32_t groups,
                                       uint32_t decisions);

}  // namespace gemlet::arbiter
