// Streams.
#include <algorithm>

#include "allocations.hpp"
#include "capture.hpp"
#include "visible_devices.hpp"

using namespace gemlet::sim;

namespace {

CUresult create(const char* name, CUstream* stream, unsigned flags, int priority) {
    return api(name, [&] {
        check(stream != nullptr && (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0);
        CUcontext context = require_context();
        *stream = create_stream(context, flags, std::clamp(priority, -5, 0));
    });
}

CUresult destroy(const char* name, CUstream stream) {
    return api(name, [&] {
        check(stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD,
              CUDA_ERROR_INVALID_HANDLE);
        destroy_stream(checked_handle(stream, Tag::kStream));
    });
}

CUresult word(const char* name, CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, bool wide,
              bool wait) {
    return api(name, [&] {
        check(address != 0 && address % (wide ? 8 : 4) == 0);
        submit(stream, WordStep{address, value, flags, wide, wait});
    });
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    return create(__func__, stream, flags, 0);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    return create(__func__, stream, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) {
    return destroy(__func__, stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    return destroy(__func__, stream);
}

CUresult cuStreamSynchronize(CUstream stream) {
    return api(__func__, [&] {
        CUstream s = resolve_stream(stream);
        forbid_on_capturing(s);
        forbid_implicit(s);
        synchronize_stream(s);
        pools_synchronized();
    });
}

CUresult cuStreamQuery(CUstream stream) {
    return api(__func__, [&] {
        CUstream s = resolve_stream(stream);
        forbid_on_capturing(s);
        forbid_implicit(s);
        return stream_is_idle(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    return api(__func__, [&] {
        CUstream s = resolve_stream(stream);
        checked_handle(event, Tag::kEvent);
        if (capturing(s) || was_captured(event)) {
            forbid_implicit(s);
            return capture_await(s, event);
        }
        forbid_implicit(s);
        submit(s, AwaitStep{event});
    });
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    return api(__func__, [&] {
        check(context != nullptr);
        *context = resolve_stream(stream)->context;
    });
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
    return api(__func__, [&] {
        check(context != nullptr);
        *context = resolve_stream(stream)->context;
        if (green != nullptr) *green = (*context)->as_green;
    });
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
    return api(__func__, [&] {
        check(device != nullptr);
        *device = ordinal_of(resolve_stream(stream)->context->device->index());
    });
}

CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
    return api(__func__, [&] {
        check(flags != nullptr);
        *flags = resolve_stream(stream)->flags;
    });
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    return api(__func__, [&] {
        check(priority != nullptr);
        *priority = resolve_stream(stream)->priority;
    });
}

CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
    return api(__func__, [&] {
        check(id != nullptr);
        *id = resolve_stream(stream)->id;
    });
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr, size_t, unsigned) {
    return api(__func__, [&] { resolve_stream(stream); });
}

// Attributes are hints about caches and priorities, which the simulation has no use for.
CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
    return api(__func__, [&] {
        resolve_stream(to);
        resolve_stream(from);
    });
}

CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID which, CUstreamAttrValue* value) {
    return api(__func__, [&] {
        check(value != nullptr);
        *value = CUstreamAttrValue{};
        CUstream s = resolve_stream(stream);
        if (which == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = s->priority;
    });
}

CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID, const CUstreamAttrValue* value) {
    return api(__func__, [&] {
        check(value != nullptr);
        resolve_stream(stream);
    });
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return word(__func__, stream, address, value, flags, false, false);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    return word(__func__, stream, address, value, flags, true, false);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return word(__func__, stream, address, value, flags, false, true);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    return word(__func__, stream, address, value, flags, true, true);
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* params, unsigned flags) {
    return api(__func__, [&] {
        check(flags == 0 && (count == 0 || params != nullptr));
        for (unsigned i = 0; i < count; ++i) {
            const CUstreamBatchMemOpParams& p = params[i];
            switch (p.operation) {
                case CU_STREAM_MEM_OP_WAIT_VALUE_32:
                    submit(stream, WordStep{p.waitValue.address, p.waitValue.value, p.waitValue.flags, false, true});
                    break;
                case CU_STREAM_MEM_OP_WAIT_VALUE_64:
                    submit(stream, WordStep{p.waitValue.address, p.waitValue.value64, p.waitValue.flags, true, true});
                    break;
                case CU_STREAM_MEM_OP_WRITE_VALUE_32:
                    submit(stream,
                           WordStep{p.writeValue.address, p.writeValue.value, p.writeValue.flags, false, false});
                    break;
                case CU_STREAM_MEM_OP_WRITE_VALUE_64:
                    submit(stream,
                           WordStep{p.writeValue.address, p.writeValue.value64, p.writeValue.flags, true, false});
                    break;
                case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
                case CU_STREAM_MEM_OP_BARRIER:
                    break;
                default:
                    fail(CUDA_ERROR_INVALID_VALUE);
            }
        }
    });
}

}  // extern "C"
