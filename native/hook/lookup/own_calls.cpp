#include "hook/lookup/own_calls.h"

#include "hook/lookup/intercept.h"

namespace gemlet::hook {

const OwnCalls& own() {
    static const OwnCalls calls = [] {
        OwnCalls c;
        c.complete = true;
#define CALL(name)                                                    \
    c.name = reinterpret_cast<decltype(&::name)>(real_symbol(#name)); \
    c.complete = c.complete && c.name;
#define OPTIONAL(name) c.name = reinterpret_cast<decltype(&::name)>(real_symbol(#name));
#include "hook/lookup/own_calls.def"
#undef CALL
#undef OPTIONAL
        return c;
    }();
    return calls;
}

ContextScope::ContextScope(CUcontext context) {
    CUcontext current = nullptr;
    if (own().cuCtxGetCurrent(&current) != CUDA_SUCCESS) return;
    if (current == context) {
        ok_ = true;
        return;
    }
    ok_ = pushed_ = own().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

ContextScope::~ContextScope() {
    CUcontext popped;
    if (pushed_) own().cuCtxPopCurrent_v2(&popped);
}

RelaxedCapture::RelaxedCapture() {
    own().cuThreadExchangeStreamCaptureMode(&mode_);
}
RelaxedCapture::~RelaxedCapture() {
    own().cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace gemlet::hook
