// The driver as the hook itself uses it: `own().cuEventQuery(event)`.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

struct OwnCalls {
#define CALL(name) decltype(&::name) name = nullptr;
#define OPTIONAL(name) decltype(&::name) name = nullptr;
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
