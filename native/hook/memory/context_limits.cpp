// Limits of a context that stand for device memory: stack, heap and output buffer of kernels. The driver takes it
// when the limit is raised or at the latest when a kernel needs it, so it is charged when the limit is raised. It
// keeps that memory when a limit is lowered: what was paid for once is not paid for again, and is given back when the
// context is gone.
#include <algorithm>
#include <map>
#include <mutex>
#include <new>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"

namespace gemlet::hook {

namespace {

struct Raised {
    CUdevice device = -1;
    uint64_t bytes = 0;                // charged
    std::map<CUlimit, uint64_t> paid;  // the highest values so far
};

struct Limits {
    std::mutex mutex;
    std::map<CUcontext, Raised> raised;
};

Limits& limits() {
    static auto* all = new Limits;
    return *all;
}

bool is_of_unknown_size(CUlimit limit) {
    return limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT;
}

// What a limit of `value` takes, as far as that is known.
uint64_t taken_by(CUdevice device, CUlimit limit, uint64_t value) {
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE) return value;
    const auto attribute = own().cuDeviceGetAttribute;
    int processors = 0, threads = 0;
    if (limit != CU_LIMIT_STACK_SIZE || !attribute ||
        attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
        attribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS)
        return 0;
    const uint64_t resident = uint64_t(processors) * uint64_t(threads);
    return value < kAbsurd / (resident + 1) ? value * resident : kAbsurd;
}

}  // namespace

void forget_limits(CUcontext context) {
    std::lock_guard lock(limits().mutex);
    auto node = limits().raised.extract(context);
    if (node) give_back(node.mapped().device, node.mapped().bytes);
}

void forget_limits() {
    new (&limits()) Limits;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    Reentry reentry;
    const CUdevice device = reentry.nested() ? -1 : current_device();
    size_t now = 0;
    const auto get = own().cuCtxGetLimit;
    if (device < 0 || !get || get(&now, limit) != CUDA_SUCCESS || value <= now)
        return real::cuCtxSetLimit(limit, value);
    std::lock_guard lock(limits().mutex);
    const CUcontext context = owning_context();
    const auto known = limits().raised.find(context);
    uint64_t paid = now;
    if (known != limits().raised.end())
        if (const auto high = known->second.paid.find(limit); high != known->second.paid.end())
            paid = std::max(paid, high->second);
    const uint64_t most = taken_by(device, limit, value);
    if (most >= kAbsurd) return real::cuCtxSetLimit(limit, value);  // the driver refuses by itself
    if (is_of_unknown_size(limit) && !room_for_unknown(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t bytes = value > paid ? most - std::min(most, taken_by(device, limit, paid)) : 0;
    if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = real::cuCtxSetLimit(limit, value);
    if (result != CUDA_SUCCESS) {
        give_back(device, bytes);
    } else if (bytes > 0) {
        Raised& raised = limits().raised[context];
        raised.device = device;
        raised.bytes += bytes;
        raised.paid[limit] = value;
    }
    return result;
}

}  // extern "C"
