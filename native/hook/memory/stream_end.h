// An event behind what a stream has got so far, which tells when it has come to the end of that.
#pragma once

#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

// `event`: null, or one of the same context that is recorded anew. Null afterwards if it cannot be.
inline void record_end(CUevent& event, CUcontext context, CUstream stream) {
    const ContextScope scope(context);
    if (!scope.ok()) return;
    if (!event && own().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) event = nullptr;
    if (event && own().cuEventRecord(event, stream) != CUDA_SUCCESS) {
        own().cuEventDestroy_v2(event);
        event = nullptr;
    }
}

// Also if its context is gone.
inline bool has_ended(CUevent event) {
    return own().cuEventQuery(event) != CUDA_ERROR_NOT_READY;
}

}  // namespace gemlet::hook
