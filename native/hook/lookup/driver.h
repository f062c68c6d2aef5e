// The real driver behind each hook: `real::cuMemAlloc_v2(&p, n)` calls what the hook of that name replaced.
//
// The table is constant-initialised, so it works before any constructor ran, and is filled without a lock on the
// first use after libcuda was loaded: every thread would write the same addresses.
#pragma once

#include <atomic>
#include <cstddef>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

enum class Symbol : size_t {
#define HOOK(name) k_##name,
#include "hook/lookup/hooks.def"
    kCount,
};
inline constexpr size_t kSymbols = static_cast<size_t>(Symbol::kCount);

// Addresses in the driver by Symbol; null until found, for ever if this driver has no such function.
extern constinit std::atomic<void*> real_addresses[kSymbols];

// Finds (or loads) libcuda, fills the table, and returns the symbol's address or null.
void* find_real(Symbol symbol);

inline void* real_address(Symbol symbol) {
    void* found = real_addresses[static_cast<size_t>(symbol)].load(std::memory_order_relaxed);
    return found ? found : find_real(symbol);
}

template <class Function>
class RealCall;

template <class... Arguments>
class RealCall<CUresult(Arguments...)> {
  public:
    constexpr explicit RealCall(Symbol symbol) : symbol_(symbol) {}

    CUresult operator()(Arguments... arguments) const {
        void* address = real_address(symbol_);
        if (!address) [[unlikely]]
            return CUDA_ERROR_NOT_SUPPORTED;
        return reinterpret_cast<CUresult (*)(Arguments...)>(address)(arguments...);
    }

  private:
    Symbol symbol_;
};

namespace real {
#define HOOK(name) inline constexpr RealCall<decltype(::name)> name{Symbol::k_##name};
#include "hook/lookup/hooks.def"
}  // namespace real

}  // namespace gemlet::hook
