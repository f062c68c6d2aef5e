// Streams and their order: within one, and against the two default streams.
#include <algorithm>

#include "capture.hpp"
#include "handles.hpp"

namespace gemlet::sim {
namespace {

std::atomic<unsigned long long> next_stream_id{1};

bool blocking(CUstream stream) {
    return (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

// The unfinished ends of all blocking streams of a context.
std::vector<OpRef> blocking_tails(CUcontext context) {
    std::vector<OpRef> tails;
    const std::lock_guard guard(context->mutex);
    for (CUstream stream : context->streams)
        if (blocking(stream) && stream != context->legacy)
            if (OpRef tail = Dispatcher::get().tail(stream->queue)) tails.push_back(std::move(tail));
    return tails;
}

CUstream per_thread_stream(CUcontext context) {
    {
        const std::lock_guard guard(context->mutex);
        const auto known = context->per_thread.find(std::this_thread::get_id());
        if (known != context->per_thread.end()) return known->second;
    }
    CUstream stream = create_stream(context, CU_STREAM_DEFAULT, 0);
    const std::lock_guard guard(context->mutex);
    context->per_thread[std::this_thread::get_id()] = stream;
    return stream;
}

void check_alive(CUcontext context) {
    check(!context->device->lost(), CUDA_ERROR_UNKNOWN);
}

}  // namespace

CUstream create_stream(CUcontext context, unsigned flags, int priority) {
    auto queue = std::make_shared<Queue>();
    queue->lane = context->lane;
    CUstream stream = HandlePool<CUstream_st>::make();
    stream->context = context;
    stream->queue = std::move(queue);
    stream->flags = flags;
    stream->priority = priority;
    stream->id = next_stream_id++;
    stream->capture = nullptr;
    stream->capture_tail.clear();
    stream->capture_origin = false;
    created(stream, Tag::kStream);
    const std::lock_guard guard(context->mutex);
    context->streams.insert(stream);
    return stream;
}

void destroy_stream(CUstream stream) {
    capture_forget(stream);
    {
        const std::lock_guard guard(stream->context->mutex);
        stream->context->streams.erase(stream);
        auto& leaving = stream->context->leaving;
        std::erase_if(leaving, [](const QueueRef& queue) { return Dispatcher::get().is_idle(queue); });
        leaving.push_back(std::move(stream->queue));  // what is queued still runs
    }
    HandlePool<CUstream_st>::drop(stream);
}

CUstream resolve_stream(CUstream stream) {
    if (stream == nullptr) stream = PerThreadDefaultStream::active() ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (stream == CU_STREAM_LEGACY) return require_context()->legacy;
    if (stream == CU_STREAM_PER_THREAD) return per_thread_stream(require_context());
    return checked_handle(stream, Tag::kStream);
}

void enqueue(CUstream stream, std::vector<OpRef> ops) {
    if (ops.empty()) return;
    check_alive(stream->context);
    CUcontext context = stream->context;
    if (stream == context->legacy) {
        ops.front()->after = blocking_tails(context);
    } else if (blocking(stream)) {
        if (OpRef legacy = Dispatcher::get().tail(context->legacy->queue))
            ops.front()->after.push_back(std::move(legacy));
    }
    if (ops.size() == 1)
        Dispatcher::get().enqueue(stream->queue, std::move(ops.front()));
    else
        Dispatcher::get().enqueue(stream->queue, std::move(ops));
}

void synchronize_stream(CUstream stream) {
    bool alive = Dispatcher::get().drain(stream->queue);
    if (stream == stream->context->legacy) {
        std::vector<QueueRef> queues;
        {
            const std::lock_guard guard(stream->context->mutex);
            for (CUstream other : stream->context->streams)
                if (blocking(other)) queues.push_back(other->queue);
        }
        for (const QueueRef& queue : queues) alive = Dispatcher::get().drain(queue) && alive;
    }
    check(alive, CUDA_ERROR_UNKNOWN);
    check_alive(stream->context);
}

bool stream_is_idle(CUstream stream) {
    check_alive(stream->context);
    if (!Dispatcher::get().is_idle(stream->queue)) return false;
    if (stream != stream->context->legacy) return true;
    for (const OpRef& tail : blocking_tails(stream->context))
        if (!Dispatcher::get().is_done(tail)) return false;
    return true;
}

void synchronize_context(CUcontext context) {
    std::vector<QueueRef> queues;
    std::vector<CUcontext> greens;
    {
        const std::lock_guard guard(context->mutex);
        greens.assign(context->greens.begin(), context->greens.end());
        for (CUstream stream : context->streams) queues.push_back(stream->queue);
        queues.insert(queues.end(), context->leaving.begin(), context->leaving.end());
    }
    bool alive = true;
    for (const QueueRef& queue : queues) alive = Dispatcher::get().drain(queue) && alive;
    check(alive, CUDA_ERROR_UNKNOWN);
    check_alive(context);
    for (CUcontext green : greens) synchronize_context(green);
}

}  // namespace gemlet::sim
