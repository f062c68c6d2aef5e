// Copies of rectangles and boxes, from and to arrays too.
#include "capture.hpp"

using namespace gemlet::sim;

namespace {

CUDA_MEMCPY3D box(const CUDA_MEMCPY2D& c) {
    CUDA_MEMCPY3D b{};
    b.srcXInBytes = c.srcXInBytes, b.srcY = c.srcY, b.srcMemoryType = c.srcMemoryType, b.srcHost = c.srcHost;
    b.srcDevice = c.srcDevice, b.srcArray = c.srcArray, b.srcPitch = c.srcPitch;
    b.dstXInBytes = c.dstXInBytes, b.dstY = c.dstY, b.dstMemoryType = c.dstMemoryType, b.dstHost = c.dstHost;
    b.dstDevice = c.dstDevice, b.dstArray = c.dstArray, b.dstPitch = c.dstPitch;
    b.WidthInBytes = c.WidthInBytes, b.Height = c.Height, b.Depth = 1;
    return b;
}

CUDA_MEMCPY3D box(const CUDA_MEMCPY3D_PEER& c) {
    CUDA_MEMCPY3D b{};
    b.srcXInBytes = c.srcXInBytes, b.srcY = c.srcY, b.srcZ = c.srcZ, b.srcMemoryType = c.srcMemoryType,
    b.srcHost = c.srcHost;
    b.srcDevice = c.srcDevice, b.srcArray = c.srcArray, b.srcPitch = c.srcPitch, b.srcHeight = c.srcHeight;
    b.dstXInBytes = c.dstXInBytes, b.dstY = c.dstY, b.dstZ = c.dstZ, b.dstMemoryType = c.dstMemoryType,
    b.dstHost = c.dstHost;
    b.dstDevice = c.dstDevice, b.dstArray = c.dstArray, b.dstPitch = c.dstPitch, b.dstHeight = c.dstHeight;
    b.WidthInBytes = c.WidthInBytes, b.Height = c.Height, b.Depth = c.Depth;
    return b;
}

const CUDA_MEMCPY3D& box(const CUDA_MEMCPY3D& c) {
    return c;
}

void check_box(const CUDA_MEMCPY3D& b) {
    check(b.srcLOD == 0 && b.dstLOD == 0);
    for (const CUmemorytype type : {b.srcMemoryType, b.dstMemoryType})
        check(type >= CU_MEMORYTYPE_HOST && type <= CU_MEMORYTYPE_UNIFIED);
    const bool from_array = b.srcMemoryType == CU_MEMORYTYPE_ARRAY, to_array = b.dstMemoryType == CU_MEMORYTYPE_ARRAY;
    if (b.Height > 1) {
        check(from_array || b.srcPitch == 0 || b.srcPitch >= b.WidthInBytes + b.srcXInBytes);
        check(to_array || b.dstPitch == 0 || b.dstPitch >= b.WidthInBytes + b.dstXInBytes);
    }
}

template <class Shape>
CUresult now(const char* name, const Shape* shape) {
    return api(name, [&] {
        check(shape != nullptr);
        const CUDA_MEMCPY3D b = box(*shape);
        check_box(b);
        CUcontext context = require_context();
        if (b.WidthInBytes * b.Height * b.Depth == 0) return;
        submit_and_wait(nullptr, copy_step(b, context));
    });
}

template <class Shape>
CUresult later(const char* name, const Shape* shape, CUstream stream) {
    return api(name, [&] {
        check(shape != nullptr);
        const CUDA_MEMCPY3D b = box(*shape);
        check_box(b);
        CUstream s = resolve_stream(stream);
        if (b.WidthInBytes * b.Height * b.Depth == 0) return;
        submit(s, copy_step(b, s->context));
    });
}

// Copies between memory and an array, in bytes from the array's start.
CUDA_MEMCPY3D array_side(CUarray to, size_t to_offset, CUarray from, size_t from_offset, CUdeviceptr device,
                         void* host, size_t bytes) {
    CUDA_MEMCPY3D b{};
    b.srcMemoryType = b.dstMemoryType = host != nullptr ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    b.srcDevice = b.dstDevice = device;
    b.srcHost = b.dstHost = host;
    if (to != nullptr) b.dstMemoryType = CU_MEMORYTYPE_ARRAY, b.dstArray = to, b.dstXInBytes = to_offset;
    if (from != nullptr) b.srcMemoryType = CU_MEMORYTYPE_ARRAY, b.srcArray = from, b.srcXInBytes = from_offset;
    b.WidthInBytes = bytes;
    b.Height = b.Depth = 1;
    return b;
}

}  // namespace

extern "C" {

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) {
    return now(__func__, c);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* c) {
    return now(__func__, c);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream s) {
    return later(__func__, c, s);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* c) {
    return now(__func__, c);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* c, CUstream s) {
    return later(__func__, c, s);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* c) {
    return now(__func__, c);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* c, CUstream s) {
    return later(__func__, c, s);
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
    const CUDA_MEMCPY3D b = array_side(to, offset, nullptr, 0, 0, const_cast<void*>(from), bytes);
    return now(__func__, &b);
}
CUresult cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
    const CUDA_MEMCPY3D b = array_side(nullptr, 0, from, offset, 0, to, bytes);
    return now(__func__, &b);
}
CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
    const CUDA_MEMCPY3D b = array_side(to, offset, nullptr, 0, from, nullptr, bytes);
    return now(__func__, &b);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
    const CUDA_MEMCPY3D b = array_side(nullptr, 0, from, offset, to, nullptr, bytes);
    return now(__func__, &b);
}
CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
    const CUDA_MEMCPY3D b = array_side(to, to_offset, from, from_offset, 0, nullptr, bytes);
    return now(__func__, &b);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes, CUstream s) {
    const CUDA_MEMCPY3D b = array_side(to, offset, nullptr, 0, 0, const_cast<void*>(from), bytes);
    return later(__func__, &b, s);
}
CUresult cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes, CUstream s) {
    const CUDA_MEMCPY3D b = array_side(nullptr, 0, from, offset, 0, to, bytes);
    return later(__func__, &b, s);
}

}  // extern "C"
