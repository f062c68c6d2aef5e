// The names that Python gives to enumerators, in their order. ENUMERATIONS of the module lists them, so that a test
// compares them with Python's own.
#pragma once

#include <cstddef>

#include "arbiter/arbiter.hpp"
#include "arbiter/residency/residency.hpp"

namespace gemlet::arbiter {

inline constexpr const char* kActionKinds[] = {"grant", "update", "revoke", "park", "unpark"};
inline constexpr const char* kRefusals[] = {"", "capacity", "resident", "host"};
inline constexpr const char* kStopReasons[] = {"deadline", "idle", "revoked", "exit"};
inline constexpr const char* kWhyNames[] = {"shares", "always", "both busy", "ahead",
                                            "behind", "slowed", "unverified"};

template <typename Enum, size_t N>
constexpr bool ends_with(const char* const (&)[N], Enum last) {
    return N == static_cast<size_t>(last) + 1;
}
static_assert(ends_with(kActionKinds, Action::Kind::kUnpark));
static_assert(ends_with(kRefusals, Refusal::kHost));
static_assert(ends_with(kStopReasons, StopReason::kExit));
static_assert(ends_with(kWhyNames, Why::kUnverified));

}  // namespace gemlet::arbiter
