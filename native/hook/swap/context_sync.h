// Waits until a context has nothing left to do, for a time at most. The driver's own call has no bound: what it waits
// for may be a host function, or the event of another program, that waits for what a thread of this program does once
// its memory may be used again.
#pragma once

#include <atomic>
#include <cstdint>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// Used by one thread at a time.
class ContextSync {
  public:
    // CUDA_ERROR_NOT_READY: not within that time.
    CUresult wait(CUcontext context, uint64_t at_most_ns);
    // An earlier wait that took too long has not ended.
    bool goes_on() const { return state_.load(std::memory_order_acquire) == kAsked; }
    // Before the context is destroyed, with all that it does: returns once the driver is not asked about it any more.
    void context_goes(CUcontext context) const;

  private:
    enum State : uint32_t { kIdle, kAsked, kAnswered };
    std::atomic<uint32_t> state_{kIdle};
    CUcontext context_ = nullptr;
    CUresult result_ = CUDA_SUCCESS;
    bool has_thread_ = false;

    static void* run(void* self);
    bool await_answer(uint64_t at_most_ns) const;
};

}  // namespace gemlet::hook
