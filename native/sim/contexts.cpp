// Contexts: which are current in a thread, how they come and go.
#include <algorithm>
#include <array>

#include "addresses.hpp"
#include "capture.hpp"
#include "contexts.hpp"
#include "handles.hpp"
#include "mps_session.hpp"

namespace gemlet::sim {
namespace {

// Without a destructor: the program's own atexit handlers run after those of thread-local objects, and may launch.
class Stack {
  public:
    bool empty() const { return depth_ == 0; }
    CUcontext& back() { return at_[depth_ - 1]; }
    void push_back(CUcontext context) {
        check(depth_ < at_.size(), CUDA_ERROR_OUT_OF_MEMORY);
        at_[depth_++] = context;
    }
    void pop_back() { --depth_; }
    void erase(CUcontext context) {
        auto end = at_.begin() + depth_;
        depth_ = size_t(std::remove(at_.begin(), end, context) - at_.begin());
    }

  private:
    std::array<CUcontext, 128> at_{};
    size_t depth_ = 0;
};
thread_local constinit Stack stack;
std::atomic<unsigned long long> next_context_id{1};

std::mutex primaries_mutex;
Primary& primary_of(CUdevice device) {
    static auto* primaries = new std::vector<Primary>(devices().size());
    return (*primaries)[static_cast<size_t>(device)];
}

CUcontext make(Device& device, unsigned flags, std::shared_ptr<Lane> lane, int multiprocessors) {
    CUcontext context = HandlePool<CUctx_st>::make();  // as the one before left it
    context->device = &device;
    context->flags = flags;
    context->id = next_context_id++;
    context->lane = std::move(lane);
    context->streams.clear();
    context->leaving.clear();
    context->per_thread.clear();
    context->limits.clear();
    context->peers.clear();
    context->primary = false;
    context->owner = nullptr;
    context->as_green = nullptr;
    context->greens.clear();
    context->multiprocessors = multiprocessors;
    created(context, Tag::kContext);
    context->legacy = create_stream(context, CU_STREAM_DEFAULT, 0);
    return context;
}

void destroy_streams(CUcontext context) {
    try {
        synchronize_context(context);
    } catch (const Failure&) {  // a lost device: nothing more will happen on it
    }
    std::vector<CUstream> streams(context->streams.begin(), context->streams.end());
    for (CUstream stream : streams) destroy_stream(stream);
}

}  // namespace

CUcontext current_context() {
    return stack.empty() ? nullptr : stack.back();
}

CUcontext require_context() {
    CUcontext context = current_context();
    check(context != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    check(context->tag == Tag::kContext, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return context;
}

void set_current_context(CUcontext context) {
    if (context == nullptr) {
        if (!stack.empty()) stack.pop_back();
        return;
    }
    if (stack.empty())
        stack.push_back(checked(context));
    else
        stack.back() = checked(context);
}

void push_context(CUcontext context) {
    stack.push_back(checked(context));
}

CUcontext pop_context() {
    check(!stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext context = stack.back();
    stack.pop_back();
    return context;
}

CUcontext checked(CUcontext context) {
    check(context != nullptr && context->tag == Tag::kContext, CUDA_ERROR_INVALID_CONTEXT);
    return context;
}

CUcontext create_context(CUdevice ordinal, unsigned flags, unsigned api_version, unsigned multiprocessors) {
    Device& device = device_of(ordinal);
    check(!device.lost(), CUDA_ERROR_UNKNOWN);
    check(device.reserve(device.profile().context_bytes), CUDA_ERROR_OUT_OF_MEMORY);
    const MpsShare share = mps_share(device, multiprocessors);
    const uint32_t channel = device.open_channel(share.parts, share.below_normal);
    if (channel == kNone) {
        device.release(device.profile().context_bytes);
        fail(CUDA_ERROR_OUT_OF_MEMORY);
    }
    CUcontext context =
        make(device, flags, std::make_shared<Lane>(Lane{&device, channel, {}}), share.multiprocessors);
    context->api_version = api_version;
    mps_context_opened(device);
    return context;
}

void destroy_context(CUcontext context) {
    const std::vector<CUcontext> greens(context->greens.begin(), context->greens.end());
    for (CUcontext green : greens) destroy_green(green);
    destroy_streams(context);
    release_memory_of(context);
    context->device->close_channel(context->lane->channel);
    context->device->release(context->device->profile().context_bytes);
    mps_context_closed(*context->device);
    stack.erase(context);
    HandlePool<CUctx_st>::drop(context);
}

CUcontext create_green(CUdevice device, CUgreenCtx handle, int multiprocessors) {
    CUcontext primary = primary_state(device).context;
    CUcontext context = make(*primary->device, primary->flags, primary->lane, multiprocessors);
    context->api_version = primary->api_version;
    context->limits = primary->limits;
    context->owner = primary;
    context->as_green = handle;
    const std::lock_guard guard(primary->mutex);
    primary->greens.insert(context);
    return context;
}

void destroy_green(CUcontext context) {
    {
        const std::lock_guard guard(context->owner->mutex);
        context->owner->greens.erase(context);
    }
    destroy_streams(context);
    stack.erase(context);
    HandlePool<CUctx_st>::drop(context);
}

CUcontext owner_of(CUcontext context) {
    return context->owner != nullptr ? context->owner : context;
}

CUcontext primary_retain(CUdevice device) {
    device_of(device);
    const std::lock_guard guard(primaries_mutex);
    Primary& primary = primary_of(device);
    if (primary.context == nullptr) {
        primary.context = create_context(device, primary.flags, 0);
        primary.context->primary = true;
    }
    ++primary.references;
    return primary.context;
}

void primary_release(CUdevice device, bool all) {
    device_of(device);
    const std::lock_guard guard(primaries_mutex);
    Primary& primary = primary_of(device);
    if (primary.context == nullptr) {
        check(all, CUDA_ERROR_INVALID_CONTEXT);
        return;
    }
    primary.references = all ? 0 : primary.references - 1;
    if (primary.references > 0) return;
    destroy_context(primary.context);
    primary.context = nullptr;
}

Primary primary_state(CUdevice device) {
    device_of(device);
    const std::lock_guard guard(primaries_mutex);
    return primary_of(device);
}

void primary_set_flags(CUdevice device, unsigned flags) {
    device_of(device);
    const std::lock_guard guard(primaries_mutex);
    primary_of(device).flags = flags;
    if (primary_of(device).context != nullptr) primary_of(device).context->flags = flags;
}

}  // namespace gemlet::sim
