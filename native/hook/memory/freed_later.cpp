// Memory of cuMemAlloc that is freed in the order of a stream. The driver has it until the stream has come to the
// free (on an H200 with driver 580), so it counts until then. Nothing tells when that is; so an event behind the free
// is looked at before a request is refused and, as others may wait for the memory, by a thread.
#include <algorithm>
#include <list>
#include <mutex>
#include <new>

#include "hook/link/clock.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/own_thread.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/stream_end.h"
#include "hook/submit/streams.h"

namespace gemlet::hook {

namespace {

struct Freed {
    CUdeviceptr pointer;
    Allocation allocation;
    CUcontext context;  // of the stream
    CUevent event;      // null: it could not be recorded, so it counts until its context goes
};

struct FreedLater {
    std::mutex mutex;
    std::list<Freed> all;
    bool watched = false;
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

bool is_over(const Freed& one) {
    const DriverVisit visit;
    if (!visit || !one.event) return false;
    const RelaxedCapture relaxed;
    if (!has_ended(one.event)) return false;
    own().cuEventDestroy_v2(one.event);
    return true;
}

void* watch(void*) {
    constexpr uint64_t kFirst = 1'000'000, kMost = 100'000'000;
    begin_own_thread("gemlet");
    const Reentry reentry;
    for (uint64_t wait = kFirst;; wait = std::min(2 * wait, kMost)) {
        sleep_ns(wait);
        settle_those(is_over);
        std::lock_guard lock(freed().mutex);
        if (!freed().all.empty()) continue;
        freed().watched = false;
        return nullptr;
    }
}

}  // namespace

void settle_freed_later(CUdeviceptr pointer, const Allocation& allocation, CUstream stream) {
    const RelaxedCapture relaxed;
    if (own().cuStreamQuery(stream) == CUDA_SUCCESS) return settle_freed(pointer, allocation);
    Freed one{pointer, allocation, nullptr, nullptr};
    own().cuStreamGetCtx(stream, &one.context);
    record_end(one.event, one.context, stream);
    has_elastic(allocation.device);
    std::lock_guard lock(freed().mutex);
    freed().all.push_back(one);
    if (!freed().watched) freed().watched = start_own_thread(watch, nullptr);
}

void refresh_freed_later() {
    settle_those(is_over);
}

void forget_freed_later(CUcontext context) {
    settle_those([=](const Freed& one) { return one.context == context || one.allocation.context == context; });
}

void forget_freed_later() {
    new (&freed()) FreedLater;
}

}  // namespace gemlet::hook
