// The whole truth about one simulated device as plain bytes. It holds no pointers, so that it can be copied into any
// process; machine.hpp says how it is shared.
//
// Work is counted, not listed: the kernels of one context run one after another, so a context is described by how
// many nanoseconds of work were submitted to it and how many the multiprocessors have executed. A kernel is complete
// when `executed` reaches the value `submitted` had just after it was submitted.
#pragma once

#include <cstdint>

#include "clock.hpp"

namespace gemlet::sim {

inline constexpr uint32_t kOwners = 64;    // processes on one device
inline constexpr uint32_t kChannels = 64;  // contexts on one device
inline constexpr uint32_t kSegments = 16;  // turns a context can look back on
inline constexpr uint32_t kSamples = 8;    // utilisation samples
inline constexpr Nanoseconds kSamplePeriod = 50'000'000;
inline constexpr uint32_t kNone = UINT32_MAX;

// A process that uses the device.
struct Owner {
    uint64_t start;  // with pid, names one process for ever (field 22 of /proc/pid/stat)
    uint32_t pid;    // 0: free
    uint32_t index_generation;
    uint64_t memory;   // bytes charged to it
    uint64_t retired;  // device time of its contexts that are gone
    uint64_t samples[kSamples];
};

// From `time` on the context ran without a pause, starting at `work`.
struct Segment {
    Nanoseconds time;
    uint64_t work;
};

// A context with work for the multiprocessors.
struct Channel {
    uint32_t owner;  // index + 1; 0: free
    uint32_t reserved;
    uint64_t submitted;
    uint64_t executed;
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
    uint32_t current;      // channel that runs or is being switched to
    uint32_t resident;     // channel whose state the device still holds
    uint32_t owners_used;  // no owner at or above this index
    uint32_t channels_used;
    Owner owners[kOwners];
    Channel channels[kChannels];
};

}  // namespace gemlet::sim
