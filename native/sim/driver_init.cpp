// Initialisation, errors, version: what works before there is a device.
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>

#include "graph.hpp"
#include "handles.hpp"
#include "mps_session.hpp"
#include "visible_devices.hpp"

namespace gemlet::sim {
namespace {

std::atomic<bool> initialised{false};
std::atomic<bool> forked{false};

void note_fork() {
    if (initialised) forked = true;
}

}  // namespace

thread_local bool PerThreadDefaultStream::active_ = false;

CUresult admit(Needs needs) {
    if (needs == Needs::kNothing) return CUDA_SUCCESS;
    if (!initialised.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
    // Contexts do not survive fork(2): the child's driver is not initialised and cannot be.
    if (forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
    if (const int trouble = mps_trouble(); trouble != 0) return static_cast<CUresult>(trouble);
    return static_cast<CUresult>(sticky_fault());
}

Device& device_of(CUdevice ordinal) {
    const auto& shown = visible_devices();
    check(ordinal >= 0 && static_cast<size_t>(ordinal) < shown.size(), CUDA_ERROR_INVALID_DEVICE);
    return *devices()[static_cast<size_t>(shown[static_cast<size_t>(ordinal)])];
}

}  // namespace gemlet::sim

using namespace gemlet::sim;

namespace {
struct ErrorText {
    CUresult code;
    const char* name;
    const char* text;
};
constexpr ErrorText kErrors[] = {
#define GEMLET_SIM_ERROR(NAME, TEXT) {NAME, #NAME, TEXT},
#include "errors.def"
#undef GEMLET_SIM_ERROR
};

const ErrorText* find_error(CUresult code) {
    for (const ErrorText& error : kErrors)
        if (error.code == code) return &error;
    return nullptr;
}
}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
    return api(
        __func__,
        [&]() -> CUresult {
            check(flags == 0);
            check(!forked, CUDA_ERROR_NOT_INITIALIZED);
            try {
                if (visible_devices().empty()) return CUDA_ERROR_NO_DEVICE;
            } catch (const std::runtime_error& error) {
                std::fprintf(stderr, "gemlet-sim: no simulated machine: %s\n", error.what());
                return CUDA_ERROR_NO_DEVICE;
            }
            if (const CUresult refused = mps_connect(); refused != CUDA_SUCCESS) return refused;
            static const int once = pthread_atfork(nullptr, nullptr, note_fork);
            (void)once;
            initialised.store(true, std::memory_order_release);
            return static_cast<CUresult>(sticky_fault());
        },
        Needs::kNothing);
}

CUresult cuDriverGetVersion(int* version) {
    return api(
        __func__,
        [&] {
            check(version != nullptr);
            *version = 13000;
        },
        Needs::kNothing);
}

CUresult cuGetErrorName(CUresult code, const char** name) {
    return api(
        __func__,
        [&] {
            check(name != nullptr);
            const ErrorText* error = find_error(code);
            *name = error != nullptr ? error->name : nullptr;
            check(error != nullptr);
        },
        Needs::kNothing);
}

CUresult cuGetErrorString(CUresult code, const char** text) {
    return api(
        __func__,
        [&] {
            check(text != nullptr);
            const ErrorText* error = find_error(code);
            *text = error != nullptr ? error->text : nullptr;
            check(error != nullptr);
        },
        Needs::kNothing);
}

// The runtime library's private tables are undocumented, so there are none here: programs of the driver API only.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
    return api(
        __func__,
        [&] {
            if (table != nullptr) *table = nullptr;
            return CUDA_ERROR_NOT_SUPPORTED;
        },
        Needs::kNothing);
}

}  // extern "C"
