#include "hook/lookup/nvml_lookup.h"

#include <atomic>
#include <iterator>

#include "hook/lookup/intercept.h"

namespace gemlet::hook {

namespace {

struct Entry {
    const char* name;
    void* hook;
};

// Constant data but for relocation: usable before any constructor ran.
const Entry entries[] = {
#define NVML(name) {#name, reinterpret_cast<void*>(&::name)},
#include "hook/lookup/hooks.def"
};
constinit std::atomic<void*> reals[std::size(entries)];

const Entry* entry_of(std::string_view name) {
    for (const Entry& entry : entries)
        if (name == entry.name) return &entry;
    return nullptr;
}

std::atomic<void*>& found_real(const Entry& entry) {
    return reals[&entry - entries];
}

void* real_of(const Entry& entry) {
    void* real = found_real(entry).load(std::memory_order_relaxed);
    if (real) return real;
    real = nvml_symbol(entry.name);
    found_real(entry).store(real, std::memory_order_relaxed);
    return real;
}

}  // namespace

void* nvml_symbol(const char* name) {
    void* library = loaded_library("libnvidia-ml.so.1");
    return library ? quiet_dlsym(library, name) : nullptr;
}

void* real_nvml(std::string_view name) {
    const Entry* entry = entry_of(name);
    return entry ? real_of(*entry) : nullptr;
}

bool is_nvml_hook(std::string_view name) {
    return entry_of(name) != nullptr;
}

void* redirect_nvml(void* found, std::string_view name) {
    const Entry* entry = entry_of(name);
    if (!entry) return found;
    if (found == entry->hook) return real_of(*entry) ? found : nullptr;
    void* unknown = nullptr;
    found_real(*entry).compare_exchange_strong(unknown, found, std::memory_order_relaxed);
    return entry->hook;
}

}  // namespace gemlet::hook
