// What holds for a device when no daemon, or not yet one, or no longer one governs it: decided here, for work and for
// memory alike.
#pragma once

#include <cstdint>

#include "hook/submit/device.h"

namespace gemlet::hook {

enum class Governance : uint8_t {
    // clang-format off
    //           work                                          memory
    kUnmanaged,  // passes                                     passes: no daemon was named
    kManaged,    // by token                                   within the limit
    kOrphaned,   // by the last shares; strict: waits, fails   within the limit that a daemon left, or the launcher
    kUnlimited,  // passes, which was said                     passes: no daemon has governed it so far
    kRefused,    // waits, then fails                          waits, then fails: the same, strict
    // clang-format on
};

// Null: a device that the hook cannot handle. For memory under the device's `ledger_mutex`.
Governance governance(const Device* device);

// Whether work passes while no daemon governs a device.
bool work_passes_unmanaged();

// Waits until a daemon governs the device, for as long as this process has patience since none does; no longer than
// that altogether, however many calls wait. Null: false. Only for those that are strict.
bool await_daemon(Device* device);
bool out_of_patience(const Device& device);

}  // namespace gemlet::hook
