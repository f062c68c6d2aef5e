// Sets of one and two dimensions, in elements of 1, 2 and 4 bytes.
#include "capture.hpp"

using namespace gemlet::sim;

namespace {

CUresult now(const char* name, CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
             size_t height) {
    return api(name, [&] {
        const SetStep step = set_step(to, pitch, value, element, width, height);
        if (width == 0 || height == 0) return;
        submit_and_wait(nullptr, step);
    });
}

CUresult later(const char* name, CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
               size_t height, CUstream stream) {
    return api(name, [&] {
        CUstream s = resolve_stream(stream);
        const SetStep step = set_step(to, pitch, value, element, width, height);
        if (width == 0 || height == 0) return;
        submit(s, step);
    });
}

}  // namespace

extern "C" {

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char v, size_t n) {
    return now(__func__, to, 0, v, 1, n, 1);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short v, size_t n) {
    return now(__func__, to, 0, v, 2, n, 1);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned v, size_t n) {
    return now(__func__, to, 0, v, 4, n, 1);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h) {
    return now(__func__, to, pitch, v, 1, w, h);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h) {
    return now(__func__, to, pitch, v, 2, w, h);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h) {
    return now(__func__, to, pitch, v, 4, w, h);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) {
    return later(__func__, to, 0, v, 1, n, 1, s);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short v, size_t n, CUstream s) {
    return later(__func__, to, 0, v, 2, n, 1, s);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream s) {
    return later(__func__, to, 0, v, 4, n, 1, s);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s) {
    return later(__func__, to, pitch, v, 1, w, h, s);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s) {
    return later(__func__, to, pitch, v, 2, w, h, s);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h, CUstream s) {
    return later(__func__, to, pitch, v, 4, w, h, s);
}

}  // extern "C"
