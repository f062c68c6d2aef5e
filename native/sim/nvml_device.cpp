// NVML of the simulated machine: devices, read from the same shared state as the driver's.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "device_identity.hpp"
#include "nvml_frame.hpp"
#include "schedule.hpp"

using namespace gemlet::sim;

namespace {

constexpr uint64_t kWindowSamples = 4;  // 4 x 50 ms: NVML's utilisation looks back 200 ms

nvmlReturn_t handle_of(int index, nvmlDevice_t* device) {
    if (index < 0) return NVML_ERROR_NOT_FOUND;
    return nvml_value(device, reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(index) + 1));
}

struct Usage {
    uint32_t pid;
    bool mps;
    uint64_t memory;
    unsigned percent;
};

struct Snapshot {
    std::vector<Usage> processes;  // alive ones
    unsigned percent;
};

unsigned percent(uint64_t now, uint64_t before, Nanoseconds span) {
    return span == 0 ? 0 : static_cast<unsigned>(std::min<uint64_t>(100, ((now - before) * 100 + span / 2) / span));
}

bool mps_client(const DeviceState& state, uint32_t owner) {
    return std::any_of(state.channels, state.channels + state.channels_used,
                       [owner](const Channel& c) { return c.owner == owner + 1 && c.share != 0; });
}

Snapshot look(Device& device) {
    const auto state = std::make_unique<DeviceState>();
    device.read(*state);
    const uint64_t sample = state->sample_index > kWindowSamples ? state->sample_index - kWindowSamples : 0;
    const Nanoseconds span = state->time - sample * kSamplePeriod;
    Snapshot seen{};
    seen.percent = percent(state->busy, state->busy_samples[sample % kSamples], span);
    for (uint32_t i = 0; i < state->owners_used; ++i) {
        const Owner& owner = state->owners[i];
        if (owner.pid == 0 || !Machine::get().alive(owner.pid, owner.start)) continue;
        const uint64_t used = schedule_used(*state, i);
        seen.processes.push_back({owner.pid, mps_client(*state, i), owner.memory,
                                  percent(used, std::min(used, owner.samples[sample % kSamples]), span)});
    }
    return seen;
}

template <class Info, class Fill>
nvmlReturn_t list(unsigned* count, Info* out, size_t found, Fill&& fill) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned room = *count;
    *count = static_cast<unsigned>(found);
    if (found == 0) return NVML_SUCCESS;
    if (room < found || out == nullptr) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (size_t i = 0; i < found; ++i) fill(out[i], i);
    return NVML_SUCCESS;
}

// An MPS client is in both lists, as tools that show it as "M+C" expect.
nvmlReturn_t running(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_v2_t* out, bool only_mps = false) {
    return nvml(handle, [&](Device& device) {
        Snapshot seen = look(device);
        if (only_mps) std::erase_if(seen.processes, [](const Usage& usage) { return !usage.mps; });
        return list(count, out, seen.processes.size(), [&](nvmlProcessInfo_v2_t& info, size_t i) {
            // No MIG instance: all ones.
            info = {seen.processes[i].pid, seen.processes[i].memory, UINT32_MAX, UINT32_MAX};
        });
    });
}

nvmlReturn_t nobody(nvmlDevice_t handle, unsigned* count) {
    return nvml(handle, [&](Device&) { return nvml_value(count, 0u); });
}

nvmlReturn_t not_supported(nvmlDevice_t handle) {
    return nvml(handle, [](Device&) -> nvmlReturn_t { return NVML_ERROR_NOT_SUPPORTED; });
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
    return nvml([&]() -> nvmlReturn_t {
        if (index >= devices().size()) return NVML_ERROR_INVALID_ARGUMENT;
        return handle_of(static_cast<int>(index), device);
    });
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
    return nvml([&]() -> nvmlReturn_t {
        return uuid == nullptr ? NVML_ERROR_INVALID_ARGUMENT : handle_of(device_with_uuid(uuid), device);
    });
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pci, nvmlDevice_t* device) {
    return nvml([&]() -> nvmlReturn_t {
        return pci == nullptr ? NVML_ERROR_INVALID_ARGUMENT : handle_of(device_with_pci(pci), device);
    });
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* pci, nvmlDevice_t* device) {
    return nvmlDeviceGetHandleByPciBusId_v2(pci, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
    return nvml(handle, [&](Device& d) { return nvml_value(index, d.index()); });
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned* minor) {
    return nvml(handle, [&](Device& d) { return nvml_value(minor, d.index()); });
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char* text, unsigned length) {
    return nvml(handle, [&](Device& d) { return nvml_text(text, length, d.profile().name); });
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char* text, unsigned length) {
    return nvml(handle, [&](Device& d) { return nvml_text(text, length, device_uuid_text(d).c_str()); });
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
    return nvml(handle, [&](Device& d) -> nvmlReturn_t {
        if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        *pci = {};
        pci->bus = pci_bus(d);
        pci->pciDeviceId = d.profile().pci_device_id;
        std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
        std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
    constexpr size_t kMajor = 75, kMinor = 76;  // device_attributes.def
    return nvml(handle, [&](Device& d) {
        const nvmlReturn_t first = nvml_value(major, static_cast<int>(d.profile().attributes[kMajor]));
        return first != NVML_SUCCESS ? first : nvml_value(minor, static_cast<int>(d.profile().attributes[kMinor]));
    });
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t handle, unsigned* cores) {
    constexpr size_t kMultiprocessors = 16;  // device_attributes.def
    constexpr unsigned kCores = 128;         // of a multiprocessor, since compute capability 8.6
    return nvml(handle, [&](Device& d) {
        return nvml_value(cores, kCores * static_cast<unsigned>(d.profile().attributes[kMultiprocessors]));
    });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* memory) {
    return nvml(handle, [&](Device& d) -> nvmlReturn_t {
        if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        const uint64_t total = d.profile().capacity + d.profile().reserved;
        const uint64_t used = d.memory_in_use() + d.profile().reserved;  // version 1 counts the driver's own as used
        *memory = {total, total - used, used};
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* memory) {
    return nvml(handle, [&](Device& d) -> nvmlReturn_t {
        if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        if (memory->version != (sizeof *memory | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        const uint64_t used = d.memory_in_use();
        memory->total = d.profile().capacity + d.profile().reserved;
        memory->reserved = d.profile().reserved;
        memory->used = used;
        memory->free = memory->total - memory->reserved - used;
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* utilization) {
    return nvml(handle, [&](Device& d) {
        const unsigned busy = look(d).percent;
        return nvml_value(utilization, nvmlUtilization_t{busy, busy / 2});  // memory traffic is not modelled: a guess
    });
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_v1_t* out) {
    return nvml(handle, [&](Device& d) {
        const Snapshot seen = look(d);
        return list(count, out, seen.processes.size(), [&](nvmlProcessInfo_v1_t& info, size_t i) {
            info = {seen.processes[i].pid, seen.processes[i].memory};
        });
    });
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count,
                                                     nvmlProcessInfo_v2_t* out) {
    return running(handle, count, out);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                     nvmlProcessInfo_v2_t* out) {
    return running(handle, count, out);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_v2_t*) {
    return nobody(handle, count);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                        nvmlProcessInfo_v2_t* out) {
    return running(handle, count, out, /*only_mps=*/true);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t* samples,
                                             unsigned* count, unsigned long long since) {
    return nvml(handle, [&](Device& d) {
        Snapshot seen = look(d);
        const unsigned long long now = monotonic_now() / 1000;
        if (since > now) seen.processes.clear();
        return list(count, samples, seen.processes.size(), [&](nvmlProcessUtilizationSample_t& s, size_t i) {
            s = {seen.processes[i].pid, now, seen.processes[i].percent, 0, 0, 0};
        });
    });
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int, unsigned* celsius) {
    return nvml(handle, [&](Device& d) { return nvml_value(celsius, d.profile().temperature_c); });
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned* milliwatts) {
    return nvml(handle, [&](Device& d) {
        const Profile& p = d.profile();
        return nvml_value(milliwatts, p.power_idle_mw + (p.power_busy_mw - p.power_idle_mw) / 100 * look(d).percent);
    });
}
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned* milliwatts) {
    return nvml(handle, [&](Device& d) { return nvml_value(milliwatts, d.profile().power_limit_mw); });
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned* milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(handle, milliwatts);
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, int type, unsigned* megahertz) {
    constexpr int kMemory = 2;
    return nvml(handle, [&](Device& d) {
        return nvml_value(megahertz, type == kMemory ? d.profile().memory_clock_mhz : d.profile().sm_clock_mhz);
    });
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, int type, unsigned* megahertz) {
    constexpr int kMemory = 2;
    return nvml(handle, [&](Device& d) {
        return nvml_value(megahertz, type == kMemory ? d.profile().memory_clock_mhz : d.profile().sm_clock_max_mhz);
    });
}
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t handle, unsigned*) {
    return not_supported(handle);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned*, unsigned*) {
    return not_supported(handle);
}
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, int* mode) {
    return nvml(handle, [&](Device&) { return nvml_value(mode, 0); });
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, int* mode) {
    return nvml(handle, [&](Device&) { return nvml_value(mode, 1); });
}

}  // extern "C"
