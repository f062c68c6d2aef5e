// What holds for a device when no daemon, or not yet one, or no longer one governs it: decided here, for work and for
// memory alike.
#pragma once

#include <cstdint>

#include "hook/submit/device.h"

namespace gemlet::hook {

//               work                                        memory
enum class Standing : uint8_t {
    kUnmanaged,  // passes                                   passes: no daemon was named
    kManaged,    // by token                                 within the limit
    kOrphaned,   // by the last shares; strict: waits, fails   within the limit as the daemon left it: it is gone or
                 // silent
    kUnlimited,  // passes, which was said                   passes: no daemon has governed it so far
    kRefused,    // waits, then fails                        waits, then fails: the same, strict
};

// Null: a device that the hook cannot handle. For memory under the device's `ledger_mutex`.
Standing standing(const Device* device);

// Whether work passes while no daemon governs a device.
bool work_passes_unmanaged();

// Waits until a daemon governs the device, for at most kPatience since none does; no longer than that altogether,
// however many calls wait. Null: false. Only for those that are strict.
inline constexpr uint64_t kPatience = 10'000'000'000;
bool await_daemon(Device* device);

}  // namespace gemlet::hook
