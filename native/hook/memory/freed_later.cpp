// Memory of cuMemAlloc that is freed in the order of a stream. The driver has it until the stream has come to the
// free (on an H200 with driver 580), so it counts until then. Nothing tells when that is; so an event behind the free
// is looked at before a request is refused and, as others may wait for the memory, by a thread (awaited_frees.cpp).
#include <list>
#include <mutex>
#include <new>

#include "hook/lookup/own_calls.h"
#include "hook/memory/accounting.h"
#include "hook/memory/stream_end.h"
#include "hook/submit/streams.h"

namespace gemlet::hook {

namespace {

struct Freed {
    CUdeviceptr pointer;
    Allocation allocation;
    StreamEnd end;  // without an event it counts until its context goes
};

struct FreedLater {
    std::mutex mutex;
    std::list<Freed> all;
};

FreedLater& freed() {
    static auto* all = new FreedLater;
    return *all;
}

template <class Over>
void settle_those(Over&& over) {
    std::list<Freed> gone;
    {
        std::lock_guard lock(freed().mutex);
        auto& all = freed().all;
        for (auto one = all.begin(); one != all.end();) {
            const auto next = std::next(one);
            if (over(*one)) gone.splice(gone.end(), all, one);
            one = next;
        }
    }
    for (const Freed& one : gone) settle_freed(one.pointer, one.allocation);
}

bool is_over(Freed& one) {
    const DriverVisit visit;
    if (!visit) return false;
    const RelaxedCapture relaxed;
    if (!has_ended(one.end)) return false;
    drop_end(one.end);
    return true;
}

}  // namespace

void settle_freed_later(CUdeviceptr pointer, const Allocation& allocation, CUstream stream) {
    const RelaxedCapture relaxed;
    if (own().cuStreamQuery(stream) == CUDA_SUCCESS) return settle_freed(pointer, allocation);
    CUcontext context = nullptr;
    own().cuStreamGetCtx(stream, &context);
    Freed one{pointer, allocation, {}};
    record_end(one.end, context, stream);
    has_elastic(allocation.device);
    {
        std::lock_guard lock(freed().mutex);
        freed().all.push_back(one);
    }
    await_frees();
}

void refresh_freed_later() {
    settle_those(is_over);
    std::unique_lock lock(freed().mutex);
    const bool some_left = !freed().all.empty();
    lock.unlock();
    if (some_left) await_frees();
}

void forget_freed_later(CUcontext context) {
    settle_those([=](const Freed& one) { return one.end.context == context || one.allocation.context == context; });
}

void streams_of_frees_are_gone(CUcontext context) {
    settle_those([=](const Freed& one) { return one.end.context == context; });
}

void forget_freed_later() {
    new (&freed()) FreedLater;
}

}  // namespace gemlet::hook
