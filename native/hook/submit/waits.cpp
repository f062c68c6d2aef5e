// Calls that wait for the device, or ask whether it is done. The hook watches them and never holds them up,
// because a gated wait can deadlock a program. The driver alone decides what a call answers, and when.
#include "hook/submit/waits.h"
#include "hook/link/clock.h"
#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/submit/current_context.h"
#include "hook/submit/device.h"

using namespace gemlet::hook;

namespace gemlet::hook {

Waits* waits_here() {
    Device* device = device_in_use(current_device());
    return device ? &device->waits : nullptr;
}

}  // namespace gemlet::hook

namespace {

template <class Call>
CUresult ask(Call&& call) {
    const Reentry reentry;
    const CUresult result = call();
    if (result == CUDA_ERROR_NOT_READY && !reentry.nested())
        if (Waits* waits = waits_here()) waits->not_ready(now_ns());
    return result;
}

}  // namespace

extern "C" {

CUresult cuStreamSynchronize(CUstream stream) {
    return wait_in([&] { return real::cuStreamSynchronize(stream); });
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return wait_in([&] { return real::cuStreamSynchronize_ptsz(stream); });
}
CUresult cuEventSynchronize(CUevent event) {
    return wait_in([&] { return real::cuEventSynchronize(event); });
}
CUresult cuCtxSynchronize() {
    return wait_in([] { return real::cuCtxSynchronize(); });
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
    return wait_in([&] { return real::cuCtxSynchronize_v2(context); });
}

CUresult cuStreamQuery(CUstream stream) {
    return ask([&] { return real::cuStreamQuery(stream); });
}
CUresult cuStreamQuery_ptsz(CUstream stream) {
    return ask([&] { return real::cuStreamQuery_ptsz(stream); });
}
CUresult cuEventQuery(CUevent event) {
    return ask([&] { return real::cuEventQuery(event); });
}

}  // extern "C"
