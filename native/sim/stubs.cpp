// Every name the driver exports and the simulation does not have. cuda.h is not included here on purpose: a stub
// takes whatever it is called with.
#include <atomic>
#include <cstdio>

namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED

int not_simulated(const char* name, std::atomic<bool>& said) {
    if (!said.exchange(true)) std::fprintf(stderr, "gemlet-sim: %s is not simulated\n", name);
    return kNotSupported;
}

}  // namespace

#define GEMLET_SIM_STUB(NAME)                                      \
    extern "C" __attribute__((visibility("default"))) int NAME() { \
        static std::atomic<bool> said{false};                      \
        return not_simulated(#NAME, said);                         \
    }
#include "exports.inc"
