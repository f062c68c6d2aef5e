// The frame around NVML entry points: initialised or not, a real device or not, no exception gets out.
#pragma once

#include <atomic>
#include <cstring>

#include "device.hpp"
#pragma GCC visibility push(default)
#include "nvml_api.h"
#pragma GCC visibility pop

namespace gemlet::sim {

extern std::atomic<int> nvml_users;  // nvmlInit calls not yet undone

template <class Body>
nvmlReturn_t nvml(Body&& body) noexcept {
    if (nvml_users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
    try {
        return body();
    } catch (...) {
        return NVML_ERROR_UNKNOWN;
    }
}

// Handles are index + 1, so that none is null.
inline Device* nvml_device(nvmlDevice_t handle) {
    const auto index = reinterpret_cast<uintptr_t>(handle) - 1;
    return index < devices().size() ? devices()[index].get() : nullptr;
}

template <class Body>
nvmlReturn_t nvml(nvmlDevice_t handle, Body&& body) noexcept {
    return nvml([&]() -> nvmlReturn_t {
        Device* device = nvml_device(handle);
        if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        if (device->lost()) return NVML_ERROR_GPU_IS_LOST;
        return body(*device);
    });
}

inline nvmlReturn_t nvml_text(char* out, unsigned length, const char* text) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (std::strlen(text) + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::strcpy(out, text);
    return NVML_SUCCESS;
}

template <class T>
nvmlReturn_t nvml_value(T* out, T value) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *out = value;
    return NVML_SUCCESS;
}

}  // namespace gemlet::sim
