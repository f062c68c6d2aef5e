// Lookups of the NVML functions that the hook answers itself (hook/memory/nvml.cpp), and the real ones behind them.
#pragma once

#include <string_view>

// NVML's header is not among the build's; these are its declarations, fixed by NVML's ABI promise.
extern "C" {
struct nvmlMemory_t {
    unsigned long long total, free, used;
};
struct nvmlMemory_v2_t {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};
using nvmlDevice_t = struct nvmlDevice_st*;
using nvmlReturn_t = int;  // 0 is success
#define NVML_API __attribute__((visibility("default")))
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
}

namespace gemlet::hook {

bool is_nvml_hook(std::string_view name);

// Our function in place of the one that a lookup of one of these names found. Null if the lookup found only our
// own symbol and no NVML is loaded.
void* redirect_nvml(void* found, std::string_view name);

template <class Again>
void* answer_nvml(void* found, const char* name, Again&& again) {
    void* function = redirect_nvml(found, name);
    return function ? function : again();
}

// The function behind our own of that name, which is one of hooks.def; null if no NVML is loaded or it has none.
void* real_nvml(std::string_view name);

// Any function of NVML if that is loaded, else null.
void* nvml_symbol(const char* name);

}  // namespace gemlet::hook
