#include "hook/swap/context_sync.h"

#include "futex.h"
#include "hook/link/clock.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/own_thread.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kLookAgain = 1'000'000'000;

CUresult synchronize(CUcontext context) {
    const ContextScope scope(context);
    return scope.ok() ? own().cuCtxSynchronize() : CUDA_SUCCESS;
}

}  // namespace

void* ContextSync::run(void* self) {
    auto& sync = *static_cast<ContextSync*>(self);
    begin_own_thread("gemlet-mover");
    for (;;) {
        const uint32_t state = sync.state_.load(std::memory_order_acquire);
        if (state != kAsked) {
            futex_wait(sync.state_, state, kLookAgain);
            continue;
        }
        sync.result_ = synchronize(sync.context_);
        sync.state_.store(kAnswered, std::memory_order_release);
        futex_wake_all(sync.state_);
    }
    return nullptr;
}

bool ContextSync::await_answer(uint64_t at_most_ns) const {
    const uint64_t begin = now_ns();
    while (goes_on()) {
        const uint64_t waited = now_ns() - begin;
        if (waited >= at_most_ns) return false;
        futex_wait(state_, kAsked, at_most_ns - waited);
    }
    return true;
}

CUresult ContextSync::wait(CUcontext context, uint64_t at_most_ns) {
    if (!await_answer(at_most_ns)) return CUDA_ERROR_NOT_READY;  // to an earlier question
    if (!has_thread_) has_thread_ = start_own_thread(run, this);
    if (!has_thread_) return synchronize(context);
    context_ = context;
    state_.store(kAsked, std::memory_order_release);
    futex_wake_all(state_);
    return await_answer(at_most_ns) ? result_ : CUDA_ERROR_NOT_READY;
}

void ContextSync::context_goes(CUcontext context) const {
    while (goes_on() && context_ == context) futex_wait(state_, kAsked, kLookAgain);
}

}  // namespace gemlet::hook
