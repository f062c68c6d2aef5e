// Looking a symbol up without dlsym: the hook exports dlsym and dlvsym itself, so it cannot ask them for the real
// ones.
#pragma once

#include <atomic>

namespace gemlet::hook {

// The symbol as the next object behind this library in load order defines it (so an interposer loaded after us stays
// in the chain), or as any other object does if we were loaded last; null if none does.
void* next_definition(const char* name);

// The same, looked up once: threads that come here together store the same address.
inline void* cached_definition(std::atomic<void*>& cache, const char* name) {
    void* address = cache.load(std::memory_order_relaxed);
    if (!address) cache.store(address = next_definition(name), std::memory_order_relaxed);
    return address;
}

}  // namespace gemlet::hook
