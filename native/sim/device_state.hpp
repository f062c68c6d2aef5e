// The whole truth about one simulated device as plain bytes. It holds no pointers, so that it can be copied into any
// process; machine.hpp says how it is shared.
//
// Work is counted, not listed: the kernels of one context run one after another, so a context is described by how
// many nanoseconds of work were submitted to it and how many the multiprocessors have executed. A kernel is complete
// when `executed` reaches the value `submitted` had just after it was submitted.
//
// The contexts of MPS clients run side by side (schedule.cpp). Their work is counted in nanoseconds that it would
// take if they were alone, so that one who gets half of what it asks for executes half a nanosecond each nanosecond.
#pragma once

#include <cstdint>

#include "clock.hpp"

namespace gemlet::sim {

inline constexpr uint32_t kOwners = 64;    // processes on one device
inline constexpr uint32_t kChannels = 64;  // contexts on one device
inline constexpr uint32_t kSegments = 24;  // turns, or changes of its rate, a context can look back on
inline constexpr uint32_t kSpans = 8;      // changes of what an MPS client's queued kernels ask for
inline constexpr uint32_t kSamples = 8;    // utilisation samples
inline constexpr Nanoseconds kSamplePeriod = 50'000'000;
inline constexpr uint32_t kNone = UINT32_MAX;
inline constexpr uint32_t kMpsParty = kChannels;  // all contexts of MPS clients, as one that shares the device's time
inline constexpr uint32_t kWhole = 1u << 20;      // parts of a device, and parts of a nanosecond

// A process that uses the device.
struct Owner {
    uint64_t start;  // with pid, names one process for ever (field 22 of /proc/pid/stat)
    uint32_t pid;    // 0: free
    uint32_t index_generation;
    uint64_t memory;   // bytes charged to it
    uint64_t retired;  // device time of its contexts that are gone
    uint64_t samples[kSamples];
};

// From `time` on the context ran without a pause at `rate` / kWhole of its own speed, starting at `work` and `parts`.
struct Segment {
    Nanoseconds time;
    uint64_t work;
    uint32_t parts;
    uint32_t rate;
};

// Until the context has executed `end`, its kernels ask for `demand` / kWhole of the device.
struct Span {
    uint64_t end;
    uint64_t demand;
};

// A context with work for the multiprocessors.
struct Channel {
    uint32_t owner;         // index + 1; 0: free
    uint32_t share;         // of an MPS client: how much of the device it may use, of kWhole. 0: not one
    uint32_t below_normal;  // 1: others of its party are served first
    uint32_t rate;          // it runs at this now, of kWhole; 0: it does not
    uint64_t submitted;
    uint64_t executed;
    uint32_t executed_parts;  // ... and this much of a nanosecond, of kWhole
    uint32_t used_parts;
    uint64_t used;        // device time: a nanosecond on half of the device is half of one
    uint64_t span_first;  // of an MPS client: the spans of what is submitted and not executed
    uint64_t span_count;
    Span spans[kSpans];
    uint64_t segment_count;
    Segment segments[kSegments];
};

enum class Phase : uint32_t { kIdle = 0, kSwitching = 1, kRunning = 2 };

struct DeviceState {
    Nanoseconds time;        // the state is as of this moment
    Nanoseconds idle_since;  // valid in phase kIdle
    Nanoseconds phase_end;   // of the switch, or of the slice
    Nanoseconds copy_free[2];
    uint64_t busy;  // time the multiprocessors worked
    uint64_t switches;
    uint64_t most_memory;   // that processes ever had together
    uint64_t sample_index;  // time / kSamplePeriod of the newest sample
    uint64_t busy_samples[kSamples];
    uint32_t lost;  // 1: fell off the bus
    Phase phase;
    uint32_t current;      // channel, or kMpsParty, that runs or is being switched to
    uint32_t resident;     // channel, or kMpsParty, whose state the device still holds
    uint32_t owners_used;  // no owner at or above this index
    uint32_t channels_used;
    Owner owners[kOwners];
    Channel channels[kChannels];
};

}  // namespace gemlet::sim
