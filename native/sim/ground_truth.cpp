#include <memory>
#include <stdexcept>

#include "device.hpp"
#pragma GCC visibility push(default)
#include "gemlet_sim.h"
#pragma GCC visibility pop

namespace {

gemlet::sim::Device* find(int ordinal) {
    try {
        auto& all = gemlet::sim::devices();
        return ordinal >= 0 && static_cast<size_t>(ordinal) < all.size() ? all[static_cast<size_t>(ordinal)].get()
                                                                         : nullptr;
    } catch (const std::exception&) {
        return nullptr;
    }
}

}  // namespace

extern "C" {

int gemletSimDeviceTime(int device, unsigned long long pid, unsigned long long* nanoseconds) {
    gemlet::sim::Device* d = find(device);
    if (d == nullptr || nanoseconds == nullptr) return -1;
    *nanoseconds = d->device_time(static_cast<uint32_t>(pid));
    return 0;
}

int gemletSimMemory(int device, unsigned long long pid, unsigned long long* bytes) {
    gemlet::sim::Device* d = find(device);
    if (d == nullptr || bytes == nullptr) return -1;
    *bytes = d->memory_of(static_cast<uint32_t>(pid));
    return 0;
}

int gemletSimTotals(int device, unsigned long long* busy_nanoseconds, unsigned long long* switches) {
    gemlet::sim::Device* d = find(device);
    if (d == nullptr) return -1;
    const auto state = std::make_unique<gemlet::sim::DeviceState>();
    d->read(*state);
    if (busy_nanoseconds != nullptr) *busy_nanoseconds = state->busy;
    if (switches != nullptr) *switches = state->switches;
    return 0;
}

int gemletSimMostMemory(int device, unsigned long long* bytes) {
    gemlet::sim::Device* d = find(device);
    if (d == nullptr || bytes == nullptr) return -1;
    const auto state = std::make_unique<gemlet::sim::DeviceState>();
    d->read(*state);
    *bytes = state->most_memory;
    return 0;
}

int gemletSimSetLost(int device, int lost) {
    gemlet::sim::Device* d = find(device);
    if (d == nullptr) return -1;
    d->set_lost(lost != 0);
    return 0;
}

}  // extern "C"
