// Hints: what a person can do about a limit that a program met.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "hook/link/connection.h"
#include "hook/link/destination.h"
#include "hook/link/quoted.h"
#include "wire.h"

namespace gemlet::hook {

// `option` of gemlet set, such as "--memory", so that the limit holds `bytes`. For a share with a socket of its
// own, the program does not know the group's name, and the user cannot change the limit.
struct LimitHint {
    LimitHint(const char* option, uint64_t bytes) {
        constexpr uint64_t gib = 1ull << 30;
        const auto more = static_cast<unsigned long long>((bytes + gib - 1) / gib);
        const char* group = joined_group();
        if (std::strcmp(group, destination().group) != 0) {
            std::snprintf(text, sizeof text, "ask for more where this share was made (in Kubernetes: in the pod)");
            return;
        }
        const char* dashes = group[0] == '-' ? "-- " : "";  // it would be taken for an option
        // Most programs end at this, and a group of gemlet run goes soon after its last one.
        std::snprintf(text, sizeof text,
                      "raise it with `gemlet set %s %lluGiB%s %s%s`, or run the program again with `%s %lluGiB`",
                      option, more, simulate_option(), dashes, Quoted(group).text, option, more);
    }
    char text[sizeof(Quoted::text) + 160];
};

}  // namespace gemlet::hook
