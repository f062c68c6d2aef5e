// Events: their time stamps are device time.
#include "allocations.hpp"
#include "capture.hpp"

using namespace gemlet::sim;

namespace {

CUevent checked(CUevent event) {
    return checked_handle(event, Tag::kEvent);
}

CUresult record(const char* name, CUevent event, CUstream stream) {
    return api(name, [&] {
        checked(event);
        CUstream s = resolve_stream(stream);
        check(s->context == event->context || s->context->device == event->context->device,
              CUDA_ERROR_INVALID_HANDLE);
        if (capturing(s)) return capture_record(s, event);
        event->capture.reset();
        event->capture_nodes.clear();
        const std::lock_guard turn(s->waited_for);
        submit(s, RecordStep{event});
    });
}

CUresult elapsed(const char* name, float* milliseconds, CUevent from, CUevent to) {
    return api(name, [&]() -> CUresult {
        check(milliseconds != nullptr);
        checked(from);
        checked(to);
        check(((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) == 0, CUDA_ERROR_INVALID_HANDLE);
        check(from->op != nullptr && to->op != nullptr, CUDA_ERROR_INVALID_HANDLE);
        if (!Dispatcher::get().is_done(from->op) || !Dispatcher::get().is_done(to->op)) return CUDA_ERROR_NOT_READY;
        *milliseconds =
            static_cast<float>((static_cast<double>(to->op->finish) - static_cast<double>(from->op->finish)) / 1e6);
        return CUDA_SUCCESS;
    });
}

CUresult destroy(const char* name, CUevent event) {
    return api(name, [&] {
        checked(event);
        event->op = nullptr;
        event->capture.reset();
        event->capture_nodes.clear();
        HandlePool<CUevent_st>::drop(event);
    });
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned flags) {
    return api(__func__, [&] {
        check(event != nullptr && (flags & ~7u) == 0);
        check((flags & CU_EVENT_INTERPROCESS) == 0, CUDA_ERROR_NOT_SUPPORTED);
        CUcontext context = owner_of(require_context());
        CUevent made = HandlePool<CUevent_st>::make();
        made->context = context;
        made->flags = flags;
        *event = created(made, Tag::kEvent);
    });
}

CUresult cuEventDestroy(CUevent event) {
    return destroy(__func__, event);
}
CUresult cuEventDestroy_v2(CUevent event) {
    return destroy(__func__, event);
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record(__func__, event, stream);
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
    return record(__func__, event, stream);
}

CUresult cuEventQuery(CUevent event) {
    return api(__func__, [&]() -> CUresult {
        checked(event);
        check(!was_captured(event), CUDA_ERROR_CAPTURED_EVENT);
        forbid_during_capture();
        check(event->context->tag == Tag::kContext, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        check(!event->context->device->lost(), CUDA_ERROR_UNKNOWN);
        return Dispatcher::get().is_done(event->op) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

CUresult cuEventSynchronize(CUevent event) {
    return api(__func__, [&] {
        checked(event);
        check(!was_captured(event), CUDA_ERROR_CAPTURED_EVENT);
        forbid_during_capture();
        const OpRef op = event->op;
        if (op) check(Dispatcher::get().wait(op), CUDA_ERROR_UNKNOWN);
        pools_synchronized();
    });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
    return elapsed(__func__, milliseconds, from, to);
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
    return elapsed(__func__, milliseconds, from, to);
}

}  // extern "C"
