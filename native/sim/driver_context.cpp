// Contexts.
#include "allocations.hpp"
#include "capture.hpp"
#include "contexts.hpp"
#include "mps_session.hpp"
#include "visible_devices.hpp"

using namespace gemlet::sim;

namespace {

constexpr unsigned kContextFlags = CU_CTX_FLAGS_MASK;

CUresult create(const char* name, CUcontext* context, unsigned flags, CUdevice device, unsigned version,
                unsigned multiprocessors = 0) {
    return api(name, [&] {
        check(context != nullptr && (flags & ~kContextFlags) == 0);
        *context = create_context(device, flags, version, multiprocessors);
        push_context(*context);
    });
}

// A context for some of the multiprocessors, as MPS clients may have it.
CUresult create(const char* name, CUcontext* context, unsigned flags, CUdevice device, CUexecAffinityParam* affinity,
                int count) {
    if (count == 0) return create(name, context, flags, device, 3020);
    if (count < 0 || affinity == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!mps_client() || count != 1 || affinity->type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    const unsigned wanted = affinity->param.smCount.val;
    return wanted == 0 ? CUDA_ERROR_INVALID_VALUE : create(name, context, flags, device, 3020, wanted);
}

size_t default_limit(CUlimit limit) {
    switch (limit) {
        case CU_LIMIT_STACK_SIZE:
            return 1024;
        case CU_LIMIT_PRINTF_FIFO_SIZE:
            return 8u << 20;
        case CU_LIMIT_MALLOC_HEAP_SIZE:
            return 8u << 20;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
            return 2;
        case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
            return 2048;
        case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
            return 128;
        case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
            return 0;
        default:
            fail(CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
}

CUcontext given_or_current(CUcontext context) {
    return context != nullptr ? checked(context) : require_context();
}

}  // namespace

extern "C" {

CUresult cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
    return create(__func__, context, flags, device, 3010);
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return create(__func__, context, flags, device, 3020);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags,
                        CUdevice device) {
    return create(__func__, context, flags, device, affinity, count);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags, CUdevice device) {
    if (params != nullptr && params->cigParams != nullptr) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (params == nullptr) return create(__func__, context, flags, device, 3020);
    return create(__func__, context, flags, device, params->execAffinityParams, params->numExecAffinityParams);
}

static CUresult destroy(const char* name, CUcontext context) {
    return api(name, [&] {
        check(!checked(context)->primary, CUDA_ERROR_INVALID_CONTEXT);
        destroy_context(context);
    });
}
CUresult cuCtxDestroy(CUcontext context) {
    return destroy(__func__, context);
}
CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(__func__, context);
}

CUresult cuCtxAttach(CUcontext* context, unsigned flags) {
    return api(__func__, [&] {
        check(context != nullptr && flags == 0);
        *context = require_context();
    });
}
CUresult cuCtxDetach(CUcontext context) {
    return destroy(__func__, context);
}

static CUresult push(const char* name, CUcontext context) {
    return api(name, [&] { push_context(context); });
}
CUresult cuCtxPushCurrent(CUcontext context) {
    return push(__func__, context);
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    return push(__func__, context);
}

static CUresult pop(const char* name, CUcontext* context) {
    return api(name, [&] {
        CUcontext popped = pop_context();
        if (context != nullptr) *context = popped;
    });
}
CUresult cuCtxPopCurrent(CUcontext* context) {
    return pop(__func__, context);
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    return pop(__func__, context);
}

CUresult cuCtxSetCurrent(CUcontext context) {
    return api(__func__, [&] { set_current_context(context); });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    return api(__func__, [&] {
        check(context != nullptr);
        *context = current_context();
    });
}

CUresult cuCtxGetDevice(CUdevice* device) {
    return api(__func__, [&] {
        check(device != nullptr);
        *device = ordinal_of(require_context()->device->index());
    });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
    return api(__func__, [&] {
        check(device != nullptr);
        *device = ordinal_of(given_or_current(context)->device->index());
    });
}

CUresult cuCtxGetFlags(unsigned* flags) {
    return api(__func__, [&] {
        check(flags != nullptr);
        *flags = require_context()->flags;
    });
}

CUresult cuCtxSetFlags(unsigned flags) {
    return api(__func__, [&] {
        check((flags & ~kContextFlags) == 0);
        require_context()->flags = flags;
    });
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
    return api(__func__, [&] {
        check(id != nullptr);
        *id = given_or_current(context)->id;
    });
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version) {
    return api(__func__, [&] {
        check(version != nullptr);
        const unsigned created_with = given_or_current(context)->api_version;
        *version = created_with != 0 ? created_with : 3020;
    });
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
    return api(__func__, [&] {
        check(affinity != nullptr);
        check(type == CU_EXEC_AFFINITY_TYPE_SM_COUNT && mps_client(), CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        affinity->type = type;
        affinity->param.smCount.val = static_cast<unsigned>(require_context()->multiprocessors);
    });
}

static CUresult synchronize(const char* name, CUcontext context) {
    return api(name, [&] {
        CUcontext c = given_or_current(context);
        forbid_on_capturing_context(c);
        synchronize_context(c);
        pools_synchronized();
    });
}
CUresult cuCtxSynchronize() {
    return synchronize(__func__, nullptr);
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
    return synchronize(__func__, context);
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return api(__func__, [&] {
        require_context();
        if (least != nullptr) *least = 0;
        if (greatest != nullptr) *greatest = -5;
    });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    return api(__func__, [&] {
        check(value != nullptr);
        CUcontext c = require_context();
        *value = c->limits.contains(limit) ? c->limits[limit] : default_limit(limit);
    });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    return api(__func__, [&] {
        default_limit(limit);
        require_context()->limits[limit] = value;
    });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
    return api(__func__, [&] {
        check(config != nullptr);
        *config = require_context()->cache;
    });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    return api(__func__, [&] { require_context()->cache = config; });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
    return api(__func__, [&] {
        check(config != nullptr);
        *config = require_context()->shared_config;
    });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    return api(__func__, [&] { require_context()->shared_config = config; });
}

CUresult cuCtxResetPersistingL2Cache() {
    return api(__func__, [] { require_context(); });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    return api(__func__, [&] {
        check(flags == 0);
        CUcontext self = require_context();
        check(checked(peer)->device != self->device, CUDA_ERROR_INVALID_DEVICE);
        check(self->peers.insert(peer).second, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return api(__func__,
               [&] { check(require_context()->peers.erase(peer) > 0, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED); });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return api(__func__, [&] {
        check(context != nullptr);
        *context = primary_retain(device);
    });
}

static CUresult primary_drop(const char* name, CUdevice device, bool all) {
    return api(name, [&] { primary_release(device, all); });
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return primary_drop(__func__, device, false);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return primary_drop(__func__, device, false);
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return primary_drop(__func__, device, true);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return primary_drop(__func__, device, true);
}

static CUresult primary_flags(const char* name, CUdevice device, unsigned flags) {
    return api(name, [&] {
        check((flags & ~kContextFlags) == 0);
        primary_set_flags(device, flags);
    });
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return primary_flags(__func__, device, flags);
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    return primary_flags(__func__, device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return api(__func__, [&] {
        check(flags != nullptr && active != nullptr);
        const Primary state = primary_state(device);
        *flags = state.flags;
        *active = state.context != nullptr ? 1 : 0;
    });
}

}  // extern "C"
