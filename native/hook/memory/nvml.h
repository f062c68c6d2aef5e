// NVML's memory queries, which monitors and some frameworks ask instead of the driver: they show the group's limit,
// too.
#pragma once

#include <string_view>

namespace gemlet::hook {

bool is_nvml_hook(std::string_view name);

// Our function for what a lookup of one of these names found. Null if it only met our own symbol and no NVML is
// loaded.
void* redirect_nvml(void* found, std::string_view name);

template <class Again>
void* answer_nvml(void* found, const char* name, Again&& again) {
    void* function = redirect_nvml(found, name);
    return function ? function : again();
}

}  // namespace gemlet::hook
