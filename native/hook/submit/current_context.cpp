#include "hook/submit/current_context.h"

#include <atomic>
#include <map>
#include <mutex>
#include <new>

#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

namespace {

// Raised when a context goes away: its handle may come back for another device.
std::atomic<uint32_t> generation{1};

struct Greens {
    std::mutex mutex;
    std::map<CUcontext, CUcontext> primaries;
    std::atomic<size_t> count{0};
};

Greens& greens() {
    static auto* all = new Greens;
    return *all;
}

}  // namespace

void context_handle_free() {
    generation.fetch_add(1, std::memory_order_release);
}

CUcontext current_context() {
    CUcontext context = nullptr;
    auto get_current = own().cuCtxGetCurrent;
    return get_current && get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}

CUcontext owning_context() {
    const CUcontext context = current_context();
    Greens& all = greens();
    if (all.count.load(std::memory_order_acquire) == 0) [[likely]]
        return context;
    const std::lock_guard lock(all.mutex);
    const auto known = all.primaries.find(context);
    return known == all.primaries.end() ? context : known->second;
}

void green_context_made(CUcontext green, CUcontext primary) {
    Greens& all = greens();
    const std::lock_guard lock(all.mutex);
    all.primaries[green] = primary;
    all.count = all.primaries.size();
}

void green_context_gone(CUcontext green) {
    Greens& all = greens();
    const std::lock_guard lock(all.mutex);
    all.primaries.erase(green);
    all.count = all.primaries.size();
}

void forget_green_contexts() {
    new (&greens()) Greens;
}

CUdevice current_device() {
    struct Cached {
        CUcontext context = nullptr;
        uint32_t generation = 0;
        CUdevice device = -1;
    };
    static thread_local constinit Cached cached;
    CUcontext context = current_context();
    if (!context) return -1;
    uint32_t now = generation.load(std::memory_order_acquire);
    if (cached.context == context && cached.generation == now) [[likely]]
        return cached.device;
    CUdevice device = -1;
    if (!own().cuCtxGetDevice || own().cuCtxGetDevice(&device) != CUDA_SUCCESS) return -1;
    cached = {context, now, device};
    return device;
}

CUdevice device_of_stream(CUstream stream) {
    bool is_default = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    CUcontext context = nullptr;
    if (is_default) return current_device();
    if (!own().cuStreamGetCtx || own().cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return -1;
    ContextScope scope(context);
    return scope.ok() ? current_device() : -1;
}

}  // namespace gemlet::hook
