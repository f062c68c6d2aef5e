// How the device divides its time among contexts. Pure functions on DeviceState: no clock, no sharing.
//
// Parties take turns: each context is one, and all contexts of MPS clients together are one. Inside that one the
// first kernel of each context runs beside the others'. A kernel of some width (the part of the device that its
// blocks fill) asks for its context's share or its width, whichever is less. If that fits they run at the speed this
// gives them; if not, each gets its proportion. Clients below normal priority get what the others leave, but at least
// one hundredth of the device, so that everything ends at some time.
#pragma once

#include "device_state.hpp"
#include "profile.hpp"

namespace gemlet::sim {

void schedule_reset(DeviceState& state, Nanoseconds now);

// Lets the device work until `now`.
void schedule_advance(DeviceState& state, const Profile& profile, Nanoseconds now);

// Adds `cost` of work to a channel, which fills `width` of the device, of kWhole; returns the channel's work count at
// which it is complete. `ready` is when the device could have started: if it was idle since before `now`, it did,
// although nobody looked.
uint64_t schedule_submit(DeviceState& state, const Profile& profile, uint32_t channel, uint64_t cost, uint32_t width,
                         Nanoseconds ready, Nanoseconds now);

// Puts a transfer on one of the two copy engines (0: to the device, 1: to the host); returns when it is over.
Nanoseconds schedule_copy(DeviceState& state, const Profile& profile, unsigned engine, uint64_t bytes, bool first,
                          Nanoseconds ready);

// When `channel` reaches `work`, given what every channel has now. More work of others can only make it later.
// Plays the future out on `state`: pass a copy.
Nanoseconds schedule_forecast(DeviceState& state, const Profile& profile, uint32_t channel, uint64_t work);

// When a channel reached `work`, which it has. Exact for the last kSegments turns, the oldest known moment before.
Nanoseconds schedule_time_of(const Channel& channel, uint64_t work);

// Forgets what was submitted and not executed.
void schedule_abandon(DeviceState& state, uint32_t channel);

void schedule_drop_channel(DeviceState& state, uint32_t channel);

// Device time an owner has used, gone contexts included.
uint64_t schedule_used(const DeviceState& state, uint32_t owner);

}  // namespace gemlet::sim
