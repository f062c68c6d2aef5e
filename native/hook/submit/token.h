// The right to submit work to a device, as this process holds it or waits for it.
#pragma once

#include <cstdint>

#include "hook/lookup/driver_end.h"
#include "hook/submit/device.h"

namespace gemlet::hook {

// Blocks the calling thread until the process may submit to the device. False only with GEMLET_STRICT and no daemon,
// and while the driver ends.
bool wait_for_token(Device& device);
// What a submission answers then.
inline CUresult no_token() {
    return is_barred() ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_SYSTEM_NOT_READY;
}

// Stops submitting; the daemon is told as soon as little enough is in flight. Harmless if the token is not held.
void stop_holding(Device& device, wire::StopReason reason, uint64_t inflight_ns);

// Whether the daemon, which this process has been waiting for since `since_ns`, has been silent for too long.
bool daemon_is_silent(const Device& device, uint64_t since_ns);

// Behind a mark: gives the token back if its time is over once `inflight_ns` and another `ahead_ns` have run.
void check_deadline(Device& device, uint64_t inflight_ns, uint64_t ahead_ns);
// Likewise if it has submitted all that this turn is for.
void check_submissions(Device& device, uint64_t inflight_ns);
bool is_counted(const Device& device);  // whether this turn is for a number of submissions

// Behind a mark: submits nothing for a moment if a client of the class `latency` just took the token, because the
// order to stop is on its way.
void make_way(Device& device);

// The watcher of a device: notices idleness, deadlines, revocation and the end of what is in flight, because no
// thread of the program may be there to do so. Starts once per device.
void start_watcher(Device& device);

}  // namespace gemlet::hook
