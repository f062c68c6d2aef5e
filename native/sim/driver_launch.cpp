// Kernel launches and host functions.
#include <algorithm>

#include "capture.hpp"

using namespace gemlet::sim;

namespace {

// All blocks of a cooperative launch run at once, on the multiprocessors that the context may use.
KernelStep cooperative(KernelStep step, CUstream stream) {
    const CUDA_KERNEL_NODE_PARAMS_v3& k = step.params;
    const auto blocks = static_cast<uint64_t>(k.gridDimX) * k.gridDimY * k.gridDimZ;
    const int each = blocks_per_multiprocessor(
        *step.profile, static_cast<int>(k.blockDimX * k.blockDimY * k.blockDimZ), k.sharedMemBytes);
    const int count = resolve_stream(stream)->context->multiprocessors;
    check(blocks <= static_cast<uint64_t>(each) * static_cast<uint64_t>(count),
          CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    return step;
}

bool asks_to_cooperate(const CUlaunchConfig& c) {
    return std::any_of(c.attrs, c.attrs + c.numAttrs, [](const CUlaunchAttribute& a) {
        return a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && a.value.cooperative != 0;
    });
}

}  // namespace

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
    return api(__func__, [&] {
        KernelStep step = kernel_step(function, gx, gy, gz, bx, by, bz, shared, params, extra);
        const bool ours =
            function->tag == Tag::kKernel || function->module->context == owner_of(resolve_stream(stream)->context);
        check(ours, CUDA_ERROR_INVALID_HANDLE);
        submit(stream, std::move(step));
    });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** params, void** extra) {
    return api(__func__, [&] {
        check(c != nullptr && (c->numAttrs == 0 || c->attrs != nullptr));
        KernelStep step = kernel_step(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                                      c->blockDimZ, c->sharedMemBytes, params, extra);
        submit(c->hStream, asks_to_cooperate(*c) ? cooperative(std::move(step), c->hStream) : std::move(step));
    });
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params) {
    return api(__func__, [&] {
        submit(stream, cooperative(kernel_step(function, gx, gy, gz, bx, by, bz, shared, params, nullptr), stream));
    });
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    return api(__func__, [&] {
        check(function != nullptr);
        submit(stream, HostStep{{.fn = function, .userData = data}});
    });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
    return api(__func__, [&] {
        check(callback != nullptr && flags == 0);
        CUstream s = resolve_stream(stream);
        forbid_on_capturing(s);
        forbid_implicit(s);
        enqueue(s, {host_action([=] { callback(stream, CUDA_SUCCESS, data); })});
    });
}

}  // extern "C"
