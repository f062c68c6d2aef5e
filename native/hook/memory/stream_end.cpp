#include "hook/memory/stream_end.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

namespace {

struct Going {
    std::mutex mutex;  // held while the driver is asked
    std::vector<CUcontext> contexts;
};

Going& going() {
    static auto* all = new Going;
    return *all;
}

// With the lock.
bool goes(CUcontext context) {
    const auto& all = going().contexts;
    return std::find(all.begin(), all.end(), context) != all.end();
}

}  // namespace

CUresult record_end(StreamEnd& end, CUcontext context, CUstream stream) {
    end = {nullptr, context};
    const ContextScope scope(context);
    if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
    CUevent event = nullptr;
    if (const CUresult failed = own().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) return failed;
    const CUresult result = own().cuEventRecord(event, stream);
    if (result == CUDA_SUCCESS)
        end.event = event;
    else
        own().cuEventDestroy_v2(event);
    return result;
}

bool has_ended(const StreamEnd& end) {
    if (!end.event) return false;
    const std::lock_guard lock(going().mutex);
    if (goes(end.context)) return false;
    return own().cuEventQuery(end.event) != CUDA_ERROR_NOT_READY;
}

void drop_end(StreamEnd& end) {
    if (!end.event) return;
    const std::lock_guard lock(going().mutex);
    if (!goes(end.context)) own().cuEventDestroy_v2(end.event);
    end.event = nullptr;
}

void ends_may_go(CUcontext context) {
    const std::lock_guard lock(going().mutex);
    going().contexts.push_back(context);
}

void ends_stay_or_went(CUcontext context) {
    const std::lock_guard lock(going().mutex);
    auto& all = going().contexts;
    if (const auto one = std::find(all.begin(), all.end(), context); one != all.end()) all.erase(one);
}

void forget_stream_ends() {
    new (&going()) Going;
}

}  // namespace gemlet::hook
