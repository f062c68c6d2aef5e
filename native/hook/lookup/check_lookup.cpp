// Redirecting by address rests on one observation (driver 580: 17,434 of 17,434 lookups): cuGetProcAddress returns
// the addresses that dlsym finds. With a driver that returns any other address, calls would bypass every hook, so
// the hook asks the driver once.
//
// If it finds such an address, it tells the variants apart by order: asked with rising CUDA versions, a name walks
// through its variants from the oldest to the newest, and so do the exported symbols name, name_v2, name_v3.
#include <dlfcn.h>
#include <mutex>
#include <string>
#include <vector>

#include "hook/link/say.h"
#include "hook/lookup/intercept.h"

namespace gemlet::hook {

namespace {

struct Parts {
    std::string base, suffix;  // "cuMemsetD8", "_ptds"
};

Parts split(std::string_view name) {
    Parts parts;
    for (std::string_view suffix : {"_ptds", "_ptsz"})
        if (name.ends_with(suffix)) {
            parts.suffix = suffix;
            name.remove_suffix(suffix.size());
        }
    if (auto mark = name.rfind("_v"); mark != std::string_view::npos && mark + 3 == name.size())
        name = name.substr(0, mark);
    parts.base = name;
    return parts;
}

cuuint64_t stream_flag(const Parts& parts) {
    return parts.suffix.empty() ? CU_GET_PROC_ADDRESS_LEGACY_STREAM : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

void* ask(const Parts& parts, int version) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    CUresult result =
        real_address(Symbol::k_cuGetProcAddress_v2)
            ? real::cuGetProcAddress_v2(parts.base.c_str(), &function, version, stream_flag(parts), &status)
            : real::cuGetProcAddress(parts.base.c_str(), &function, version, stream_flag(parts));
    return result == CUDA_SUCCESS ? function : nullptr;
}

bool is_exported(void* address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_sname && info.dli_saddr == address;
}

// One address per variant, oldest first.
std::vector<void*> answers(const Parts& parts, int newest) {
    std::vector<void*> found;
    for (int major = 2; major * 1000 <= newest; ++major)
        for (int version = major * 1000; version < major * 1000 + 100 && version <= newest; version += 10)
            if (void* address = ask(parts, version); address && (found.empty() || found.back() != address))
                found.push_back(address);
    return found;
}

std::vector<std::string> exported_variants(const Parts& parts) {
    std::vector<std::string> names;
    for (const char* variant : {"", "_v2", "_v3", "_v4", "_v5"}) {
        std::string name = parts.base + variant + parts.suffix;
        if (real_symbol(name.c_str())) names.push_back(name);
    }
    return names;
}

size_t learn(const Parts& parts, int newest) {
    std::vector<void*> addresses = answers(parts, newest);
    std::vector<std::string> names = exported_variants(parts);
    size_t learned = 0;
    // The newest variants of both are the same function, but the two may reach back differently far.
    for (; !addresses.empty() && !names.empty(); addresses.pop_back(), names.pop_back()) {
        auto symbol = hooked_symbol(names.back());
        if (!symbol || redirect(addresses.back()) != addresses.back() || is_exported(addresses.back())) continue;
        learn_alias(addresses.back(), *symbol);
        ++learned;
    }
    return learned;
}

void check() {
    auto driver_version = reinterpret_cast<decltype(&::cuDriverGetVersion)>(real_symbol("cuDriverGetVersion"));
    int newest = 0;
    if (!driver_version || driver_version(&newest) != CUDA_SUCCESS) return;
    size_t unknown = 0, learned = 0;
    for (size_t i = 0; i < kSymbols; ++i) {
        Parts parts = split(name_of(static_cast<Symbol>(i)));
        void* address = ask(parts, newest);
        if (!address || redirect(address) != address) continue;
        ++unknown;
        learned += learn(parts, newest);
    }
    if (unknown)
        say_once(Topic::kLookup, "driver %d hands out %zu functions by unknown addresses; matched %zu by name",
                 newest, unknown, learned);
}

}  // namespace

void check_lookup() {
    static constinit std::atomic<bool> done{false};
    static std::mutex mutex;
    if (done.load(std::memory_order_acquire)) [[likely]]
        return;
    std::lock_guard lock(mutex);
    if (done.load(std::memory_order_relaxed)) return;
    if (driver_found()) check();
    done.store(true, std::memory_order_release);
}

}  // namespace gemlet::hook
