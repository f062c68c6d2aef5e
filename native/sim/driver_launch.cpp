// Kernel launches and host functions.
#include "capture.hpp"

using namespace gemlet::sim;

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
    return api(__func__, [&] {
        KernelStep step = kernel_step(function, gx, gy, gz, bx, by, bz, shared, params, extra);
        const bool ours =
            function->tag == Tag::kKernel || function->module->context == resolve_stream(stream)->context;
        check(ours, CUDA_ERROR_INVALID_HANDLE);
        submit(stream, std::move(step));
    });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** params, void** extra) {
    return api(__func__, [&] {
        check(c != nullptr && (c->numAttrs == 0 || c->attrs != nullptr));
        submit(c->hStream, kernel_step(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                                       c->blockDimZ, c->sharedMemBytes, params, extra));
    });
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params) {
    return api(__func__,
               [&] { submit(stream, kernel_step(function, gx, gy, gz, bx, by, bz, shared, params, nullptr)); });
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
