// The driver as the hook itself uses it: `own().cuEventQuery(event)`.
#pragma once

#include "hook/lookup/cuda_api.h"
#include "hook/lookup/driver_end.h"

namespace gemlet::hook {

// One of them: CUDA_ERROR_DEINITIALIZED once the driver may be gone.
template <class Function>
class OwnCall;

template <class... Arguments>
class OwnCall<CUresult(Arguments...)> {
  public:
    constexpr OwnCall() = default;
    constexpr OwnCall(CUresult (*function)(Arguments...)) : function_(function) {}

    CUresult operator()(Arguments... arguments) const {
        const bool unlike = thread_kind == ThreadKind::kHook || driver_ends.load(std::memory_order_relaxed);
        if (unlike) [[unlikely]]
            return visit(arguments...);
        return function_(arguments...);
    }
    explicit operator bool() const { return function_ != nullptr; }

    // For a call on the launch path, which the program's threads alone make, within one of their own.
    CUresult directly(Arguments... arguments) const { return function_(arguments...); }

  private:
    [[gnu::noinline, gnu::cold]] CUresult visit(Arguments... arguments) const {
        const DriverVisit admitted;
        return admitted ? function_(arguments...) : CUDA_ERROR_DEINITIALIZED;
    }

    CUresult (*function_)(Arguments...) = nullptr;
};

struct OwnCalls {
#define CALL(name) OwnCall<decltype(::name)> name;
#define OPTIONAL(name) OwnCall<decltype(::name)> name;
#include "hook/lookup/own_calls.def"
#undef CALL
#undef OPTIONAL
    bool complete = false;  // every CALL was found
};

// Resolved once, on first use after the driver is loaded.
const OwnCalls& own();

// Makes `context` current for a scope; does nothing if it is current already.
class ContextScope {
  public:
    explicit ContextScope(CUcontext context);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;
    bool ok() const { return ok_; }

  private:
    bool pushed_ = false;
    bool ok_ = false;
};

// While it lives, this thread's "unsafe" calls do not invalidate a capture another thread has in progress.
class RelaxedCapture {
  public:
    RelaxedCapture();
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace gemlet::hook
