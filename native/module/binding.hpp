// What the two halves of the Python module share.
#pragma once

#include <nanobind/nanobind.h>

#include "arbiter/arbiter.hpp"

namespace gemlet::arbiter {

// Keyword arguments named as the fields of Parameters; throws std::invalid_argument for any other.
Parameters parameters_from(const nanobind::kwargs& given);

inline constexpr const char* kPriorityNames[] = {"best-effort", "normal", "latency"};
// Why a client does not share the device; "shares" if it does.
inline constexpr const char* kWhyNames[] = {"shares", "always", "both busy", "ahead", "behind", "slowed", "unverified"};
inline constexpr const char* kWorkloadNames[] = {"unknown", "compute", "memory", "alone"};
Workload workload_from(const std::string& name);  // throws std::invalid_argument
Priority priority_from(const std::string& name);  // throws std::invalid_argument

}  // namespace gemlet::arbiter
