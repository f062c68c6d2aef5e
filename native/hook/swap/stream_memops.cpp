// Words that the device reads or writes in stream order. These operations cost no device time and wait for no
// token, but where memory can move they must not reach the driver while the memory is away.
#include "hook/lookup/driver.h"
#include "hook/memory/movable.h"
#include "hook/submit/gate.h"

using namespace gemlet::hook;

namespace {

template <class Call>
CUresult pass(CUstream handle, bool per_thread, Call&& call) {
    Stream* stream = swap_active() ? stream_for(handle, per_thread) : nullptr;
    MoveGate* gate = stream ? stream->gate.load(std::memory_order_acquire) : nullptr;
    if (!gate || (launch_state.captures.load() != 0 && is_capturing(meant(handle, per_thread)))) return call();
    while (!gate->enter()) swap_await_open(*gate);
    CUresult result = call();
    // The pacer must see it: a wait is in flight until it is over.
    account(*stream, *stream->page.load(std::memory_order_acquire), 1'000, launch_state.captures.load() != 0);
    gate->leave();
    return result;
}

}  // namespace

#define WORD(symbol, type)                                                               \
    CUresult symbol(CUstream s, CUdeviceptr at, type value, unsigned int flags) {        \
        return pass(s, false, [&] { return real::symbol(s, at, value, flags); });        \
    }                                                                                    \
    CUresult symbol##_ptsz(CUstream s, CUdeviceptr at, type value, unsigned int flags) { \
        return pass(s, true, [&] { return real::symbol##_ptsz(s, at, value, flags); });  \
    }
#define BATCH(symbol, per_thread)                                                                         \
    CUresult symbol(CUstream s, unsigned int count, CUstreamBatchMemOpParams* list, unsigned int flags) { \
        return pass(s, per_thread, [&] { return real::symbol(s, count, list, flags); });                  \
    }

extern "C" {

WORD(cuStreamWaitValue32, cuuint32_t)
WORD(cuStreamWaitValue32_v2, cuuint32_t)
WORD(cuStreamWriteValue32, cuuint32_t)
WORD(cuStreamWriteValue32_v2, cuuint32_t)
WORD(cuStreamWaitValue64, cuuint64_t)
WORD(cuStreamWaitValue64_v2, cuuint64_t)
WORD(cuStreamWriteValue64, cuuint64_t)
WORD(cuStreamWriteValue64_v2, cuuint64_t)
BATCH(cuStreamBatchMemOp, false)
BATCH(cuStreamBatchMemOp_ptsz, true)
BATCH(cuStreamBatchMemOp_v2, false)
BATCH(cuStreamBatchMemOp_v2_ptsz, true)

}  // extern "C"
