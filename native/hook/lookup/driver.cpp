#include "hook/lookup/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "hook/lookup/intercept.h"
#include "hook/lookup/loaded_objects.h"

namespace gemlet::hook {

constinit std::atomic<void*> real_addresses[kSymbols] = {};

namespace {

struct Entry {
    const char* name;
    void* hook;
};

// Constant data but for relocation: usable before any constructor ran.
const Entry entries[kSymbols] = {
#define HOOK(name) {#name, reinterpret_cast<void*>(&::name)},
#include "hook/lookup/hooks.def"
};

struct Named {
    std::string_view name;
    Symbol symbol;
};

constexpr auto by_name = [] {
    std::array<Named, kSymbols> sorted = {{
#define HOOK(name) {#name, Symbol::k_##name},
#include "hook/lookup/hooks.def"
    }};
    std::sort(sorted.begin(), sorted.end(), [](const Named& a, const Named& b) { return a.name < b.name; });
    return sorted;
}();

constinit std::atomic<void*> driver_handle{nullptr};  // set last: the table is complete when this is not null

struct Alias {
    std::atomic<void*> address{nullptr};
    Symbol symbol{};
};
constinit std::array<Alias, 2 * kSymbols> aliases;
constinit std::atomic<size_t> alias_count{0};

// The program must find errno and dlerror() as its own last call left them, whatever we looked up meanwhile.
class QuietLookup {
  public:
    QuietLookup() : errno_(errno) {}
    ~QuietLookup() {
        dlerror();
        errno = errno_;
    }
    QuietLookup(const QuietLookup&) = delete;
    QuietLookup& operator=(const QuietLookup&) = delete;

  private:
    int errno_;
};

void* look_up(void* handle, const char* name) {
    return reinterpret_cast<void* (*)(void*, const char*)>(next_dlsym())(handle, name);
}

// No lock: threads that come here together store the same addresses, and a lock held across dlopen could meet the
// loader's own.
void fill(void* handle) {
    for (size_t i = 0; i < kSymbols; ++i)
        real_addresses[i].store(look_up(handle, entries[i].name), std::memory_order_relaxed);
    driver_handle.store(handle, std::memory_order_release);
}

// The library an address lies in, if it looks like a driver: libcuda under another name, opened by its path.
void* driver_around(void* address) {
    Dl_info info;
    if (!dladdr(address, &info)) return nullptr;
    void* handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle || look_up(handle, "cuInit") == hook_of(Symbol::k_cuInit)) return nullptr;
    return look_up(handle, "cuInit") && look_up(handle, "cuDriverGetVersion") ? handle : nullptr;
}

}  // namespace

void* next_dlsym() {
    static constinit std::atomic<void*> cache{nullptr};
    return cached_definition(cache, "dlsym");
}

void* next_dlvsym() {
    static constinit std::atomic<void*> cache{nullptr};
    return cached_definition(cache, "dlvsym");
}

void* quiet_dlsym(void* handle, const char* name) {
    QuietLookup quiet;
    return look_up(handle, name);
}

void* loaded_library(const char* soname) {
    QuietLookup quiet;
    return dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
}

const char* name_of(Symbol symbol) {
    return entries[static_cast<size_t>(symbol)].name;
}
void* hook_of(Symbol symbol) {
    return entries[static_cast<size_t>(symbol)].hook;
}

std::optional<Symbol> hooked_symbol(std::string_view name) {
    auto found = std::lower_bound(by_name.begin(), by_name.end(), name,
                                  [](const Named& entry, std::string_view wanted) { return entry.name < wanted; });
    if (found == by_name.end() || found->name != name) return std::nullopt;
    return found->symbol;
}

bool driver_found(void* address) {
    if (driver_handle.load(std::memory_order_acquire)) return true;
    QuietLookup quiet;
    void* handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!handle && address) handle = driver_around(address);
    if (handle) fill(handle);
    return handle != nullptr;
}

// For our own calls. A program that is linked against a stub of the driver calls us before libcuda is loaded, so
// load what the stub would load.
static void* load_driver() {
    if (!driver_found()) {
        QuietLookup quiet;
        if (void* handle = dlopen("libcuda.so.1", RTLD_LAZY)) fill(handle);
    }
    return driver_handle.load(std::memory_order_acquire);
}

void* find_real(Symbol symbol) {
    load_driver();
    return real_addresses[static_cast<size_t>(symbol)].load(std::memory_order_relaxed);
}

void* real_symbol(const char* name) {
    void* handle = load_driver();
    return handle ? quiet_dlsym(handle, name) : nullptr;
}

void* redirect(void* address) {
    if (!address) return nullptr;
    for (size_t i = 0; i < kSymbols; ++i)
        if (real_addresses[i].load(std::memory_order_relaxed) == address) return entries[i].hook;
    size_t known = alias_count.load(std::memory_order_acquire);
    for (size_t i = 0; i < known; ++i)
        if (aliases[i].address.load(std::memory_order_relaxed) == address) return hook_of(aliases[i].symbol);
    return address;
}

void learn_alias(void* address, Symbol symbol) {
    size_t index = alias_count.load(std::memory_order_relaxed);
    if (index == aliases.size()) return;
    aliases[index].symbol = symbol;
    aliases[index].address.store(address, std::memory_order_relaxed);
    alias_count.store(index + 1, std::memory_order_release);
}

}  // namespace gemlet::hook
