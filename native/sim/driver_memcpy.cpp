// Copies of contiguous memory.
#include "addresses.hpp"
#include "capture.hpp"

using namespace gemlet::sim;

namespace {

uintptr_t at(const void* host) {
    return reinterpret_cast<uintptr_t>(host);
}

CUresult now(const char* name, uintptr_t to, uintptr_t from, size_t bytes) {
    return api(name, [&] {
        CUcontext context = require_context();
        if (bytes == 0) return;
        check(to != 0 && from != 0);
        (void)context;
        submit_and_wait(nullptr, copy_step(to, from, bytes));
    });
}

CUresult later(const char* name, uintptr_t to, uintptr_t from, size_t bytes, CUstream stream) {
    return api(name, [&] {
        CUstream s = resolve_stream(stream);
        if (bytes == 0) return;
        check(to != 0 && from != 0);
        submit(s, copy_step(to, from, bytes));
        // Into memory that is not pinned, such a copy returns when it is done.
        if (capturing(s) || Addresses::get().find(to) || !Addresses::get().find(from)) return;
        const std::lock_guard waits(s->waited_for);
        synchronize_stream(s);
    });
}

}  // namespace

extern "C" {

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return now(__func__, to, from, bytes);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return later(__func__, to, from, bytes, s);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return now(__func__, to, at(from), bytes);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return now(__func__, at(to), from, bytes);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return now(__func__, to, from, bytes);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream s) {
    return later(__func__, to, at(from), bytes, s);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream s) {
    return later(__func__, at(to), from, bytes, s);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return later(__func__, to, from, bytes, s);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
    return now(__func__, to, from, bytes);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream s) {
    return later(__func__, to, from, bytes, s);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, CUmemcpyAttributes*,
                               size_t*, size_t, CUstream stream) {
    return api(__func__, [&] {
        check(to != nullptr && from != nullptr && bytes != nullptr && count > 0);
        check(stream != nullptr && stream != CU_STREAM_LEGACY);  // the driver refuses the legacy stream here
        CUstream s = resolve_stream(stream);
        for (size_t i = 0; i < count; ++i) submit(s, copy_step(to[i], from[i], bytes[i]));
    });
}

}  // extern "C"
