// The frame around every driver entry point: is the driver initialised, is a fault due, does an exception stop here.
#pragma once

#include <new>
#include <utility>

#include "cuda_api.h"
#include "faults.hpp"

namespace gemlet::sim {

struct Failure {
    CUresult code;
};

[[noreturn]] inline void fail(CUresult code) {
    throw Failure{code};
}
inline void check(bool condition, CUresult otherwise = CUDA_ERROR_INVALID_VALUE) {
    if (!condition) throw Failure{otherwise};
}

enum class Needs { kNothing, kInitialised };

// A call of one of the hook's own threads, from beginning to end. None may be under way when the driver is torn down
// at the program's exit, none may begin thereafter, and none may name what is gone: the card's driver would crash, so
// this one ends the process.
class CallOfHook {
  public:
    explicit CallOfHook(const char* name) : counted_(is_hooks_thread()) {
        if (counted_) [[unlikely]]
            begin(name);
    }
    ~CallOfHook() {
        if (counted_) [[unlikely]]
            end();
    }
    void failed(CUresult code) const {
        if (counted_) [[unlikely]]
            look_at(code);
    }
    CallOfHook(const CallOfHook&) = delete;
    CallOfHook& operator=(const CallOfHook&) = delete;

  private:
    static bool is_hooks_thread();
    static void begin(const char* name);
    static void end();
    static void look_at(CUresult code);
    const bool counted_;
};

// CUDA_SUCCESS if the call may go on. Knows cuInit, fork, host functions and lost devices.
CUresult admit(Needs needs);

// `name` is the entry point's own, as in GEMLET_SIM_FAULTS. The body returns nothing, or a CUresult.
template <class Body>
CUresult api(const char* name, Body&& body, Needs needs = Needs::kInitialised) noexcept {
    const CallOfHook call(name);
    if (const CUresult refused = admit(needs); refused != CUDA_SUCCESS) return refused;
    if (const int code = due_fault(name); code != 0) return static_cast<CUresult>(code);
    try {
        if constexpr (std::is_void_v<decltype(body())>) {
            body();
            return CUDA_SUCCESS;
        } else {
            return body();
        }
    } catch (const Failure& failure) {
        call.failed(failure.code);
        // It may have failed because all work ended meanwhile.
        const int sticky = needs == Needs::kInitialised ? sticky_fault() : 0;
        return sticky != 0 ? static_cast<CUresult>(sticky) : failure.code;
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
        return CUDA_ERROR_UNKNOWN;
    }
}

// While it exists, stream 0 of this thread means the per-thread default stream: how the _ptds and _ptsz entry points
// call the plain ones.
class PerThreadDefaultStream {
  public:
    PerThreadDefaultStream() : before_(active_) { active_ = true; }
    ~PerThreadDefaultStream() { active_ = before_; }
    PerThreadDefaultStream(const PerThreadDefaultStream&) = delete;
    PerThreadDefaultStream& operator=(const PerThreadDefaultStream&) = delete;
    static bool active() { return active_; }

  private:
    bool before_;
    static thread_local bool active_;
};

}  // namespace gemlet::sim
