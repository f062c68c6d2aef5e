// An event behind what a stream has got so far, which tells when it has come to the end of that.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

struct StreamEnd {
    CUevent event = nullptr;  // null: it could not be recorded
    CUcontext context = nullptr;
};

// `context`: the stream's. Waits while the stream's queue is full, maybe for what another thread does next, so the
// caller holds no lock that such a thread may want.
CUresult record_end(StreamEnd& end, CUcontext context, CUstream stream);

// False also while its context is being destroyed, and if it could not be recorded.
bool has_ended(const StreamEnd& end);

void drop_end(StreamEnd& end);  // of a context that is not known to be gone

// Around calls that may destroy a context: the driver is asked about none of its events meanwhile.
void ends_may_go(CUcontext context);
void ends_stay_or_went(CUcontext context);
void forget_stream_ends();  // in a forked child

}  // namespace gemlet::hook
