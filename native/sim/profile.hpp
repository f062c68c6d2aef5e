// What one kind of simulated device is: read from a TOML file when the machine is created, then shared as plain bytes
// with every process of the machine, so that all of them agree whatever their environment says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gemlet::sim {

inline constexpr size_t kAttributes = 192;  // CUDA numbers device attributes from 1 up

struct Profile {
    // [device]
    char name[96];
    uint32_t devices;        // how many the machine has unless GEMLET_SIM_DEVICES says otherwise
    uint32_t pci_device_id;  // device id << 16 | vendor id, as NVML reports it
    uint64_t capacity;       // bytes a program can have, contexts included
    uint64_t reserved;       // bytes only NVML counts: what the driver keeps for itself
    uint64_t context_bytes;  // what each context takes
    uint64_t granularity;    // of device memory
    // [time]
    uint64_t slice_ns;           // how long a context runs while others wait
    uint64_t switch_ns;          // from one context to another
    uint64_t kernel_min_ns;      // an empty kernel, back to back
    uint64_t kernel_default_ns;  // a kernel outside the kernel contract
    uint64_t queue_depth;        // launches a stream holds before the next one blocks
    uint64_t copy_latency_ns;    // of one transfer between host and device
    double host_to_device_bytes_per_ns;
    double device_to_host_bytes_per_ns;
    double device_to_device_bytes_per_ns;
    // [sensors] constants NVML reports
    uint32_t temperature_c, power_idle_mw, power_busy_mw, power_limit_mw;
    uint32_t sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz, fan;
    // [attributes] by CUDA's number; unset ones are 0
    int32_t attributes[kAttributes];
};

// Reads a profile file. Throws std::runtime_error that names file and line.
Profile read_profile(const std::string& path);

// Turns $GEMLET_SIM_PROFILE (a path or the name of a shipped profile, default h200) into a path.
std::string profile_path(const std::string& name_or_path);

}  // namespace gemlet::sim
