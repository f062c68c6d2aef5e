// Copies and sets of every kind: work like any other. Each line defines the symbol and its per-thread-default-stream
// twin, which differ only in what stream handle 0 means.
#include "hook/lookup/driver.h"
#include "hook/submit/gate.h"
#include "hook/submit/waits.h"

using namespace gemlet::hook;

namespace {

constexpr bool kLink = true;     // crosses PCIe
constexpr bool kDevice = false;  // stays on the device
constexpr CUstream kDefault = nullptr;

uint64_t bytes_of(const CUDA_MEMCPY2D* c) {
    return c ? uint64_t(c->WidthInBytes) * c->Height : 0;
}
uint64_t bytes_of(const CUDA_MEMCPY3D* c) {
    return c ? uint64_t(c->WidthInBytes) * c->Height * c->Depth : 0;
}
uint64_t bytes_of(const CUDA_MEMCPY3D_PEER* c) {
    return c ? uint64_t(c->WidthInBytes) * c->Height * c->Depth : 0;
}

uint64_t bytes_of(const CUDA_MEMCPY2D_v1* c) {
    return c ? uint64_t(c->WidthInBytes) * c->Height : 0;
}
uint64_t bytes_of(const CUDA_MEMCPY3D_v1* c) {
    return c ? uint64_t(c->WidthInBytes) * c->Height * c->Depth : 0;
}

uint64_t sum(const size_t* sizes, size_t count) {
    uint64_t total = 0;
    for (size_t i = 0; sizes && i < count; ++i) total += sizes[i];
    return total;
}

}  // namespace

#define GATED(symbol, per_thread, bytes, link, stream, parameters, arguments)                              \
    CUresult symbol parameters {                                                                           \
        return submit(stream, per_thread, copy_work(bytes, link), [&] { return real::symbol arguments; }); \
    }
// The same for copies that return when they are done.
#define AWAITED(symbol, per_thread, bytes, parameters, arguments)                       \
    CUresult symbol parameters {                                                        \
        return submit(kDefault, per_thread, copy_work(bytes, kLink),                    \
                      [&] { return wait_in([&] { return real::symbol arguments; }); }); \
    }
// Asynchronous copies wait, too, if the host's memory is not pinned: PyTorch's tensor.tolist() waits in one of
// these.
#define MAY_WAIT(symbol, per_thread, bytes, stream, parameters, arguments)                                  \
    CUresult symbol parameters {                                                                            \
        return submit(stream, per_thread, copy_work(bytes, kLink),                                          \
                      [&] { return wait_in([&] { return real::symbol arguments; }, /* surely */ false); }); \
    }
#define HOST(symbol, bytes, stream, parameters, arguments)        \
    MAY_WAIT(symbol, false, bytes, stream, parameters, arguments) \
    MAY_WAIT(symbol##_ptsz, true, bytes, stream, parameters, arguments)
#define WAIT(symbol, bytes, parameters, arguments)       \
    AWAITED(symbol, false, bytes, parameters, arguments) \
    AWAITED(symbol##_ptds, true, bytes, parameters, arguments)
#define COPY(symbol, twin, bytes, link, stream, parameters, arguments) \
    GATED(symbol, false, bytes, link, stream, parameters, arguments)   \
    GATED(symbol##twin, true, bytes, link, stream, parameters, arguments)

// clang-format off
extern "C" {

WAIT(cuMemcpy,              n, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n))
HOST(cuMemcpyAsync,         n, s, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
WAIT(cuMemcpyHtoD_v2,       n, (CUdeviceptr to, const void* from, size_t n), (to, from, n))
HOST(cuMemcpyHtoDAsync_v2,  n, s, (CUdeviceptr to, const void* from, size_t n, CUstream s), (to, from, n, s))
WAIT(cuMemcpyDtoH_v2,       n, (void* to, CUdeviceptr from, size_t n), (to, from, n))
HOST(cuMemcpyDtoHAsync_v2,  n, s, (void* to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))
COPY(cuMemcpyDtoD_v2,       _ptds, n, kDevice, kDefault, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n))
COPY(cuMemcpyDtoDAsync_v2,  _ptsz, n, kDevice, s, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))

COPY(cuMemcpyDtoA_v2,       _ptds, n, kDevice, kDefault, (CUarray to, size_t at, CUdeviceptr from, size_t n), (to, at, from, n))
COPY(cuMemcpyAtoD_v2,       _ptds, n, kDevice, kDefault, (CUdeviceptr to, CUarray from, size_t at, size_t n), (to, from, at, n))
COPY(cuMemcpyAtoA_v2,       _ptds, n, kDevice, kDefault, (CUarray to, size_t to_at, CUarray from, size_t at, size_t n), (to, to_at, from, at, n))
WAIT(cuMemcpyHtoA_v2,       n, (CUarray to, size_t at, const void* from, size_t n), (to, at, from, n))
HOST(cuMemcpyHtoAAsync_v2,  n, s, (CUarray to, size_t at, const void* from, size_t n, CUstream s), (to, at, from, n, s))
WAIT(cuMemcpyAtoH_v2,       n, (void* to, CUarray from, size_t at, size_t n), (to, from, at, n))
HOST(cuMemcpyAtoHAsync_v2,  n, s, (void* to, CUarray from, size_t at, size_t n, CUstream s), (to, from, at, n, s))

WAIT(cuMemcpy2D_v2,          bytes_of(c), (const CUDA_MEMCPY2D* c), (c))
WAIT(cuMemcpy2DUnaligned_v2, bytes_of(c), (const CUDA_MEMCPY2D* c), (c))
HOST(cuMemcpy2DAsync_v2,     bytes_of(c), s, (const CUDA_MEMCPY2D* c, CUstream s), (c, s))
WAIT(cuMemcpy3D_v2,          bytes_of(c), (const CUDA_MEMCPY3D* c), (c))
HOST(cuMemcpy3DAsync_v2,     bytes_of(c), s, (const CUDA_MEMCPY3D* c, CUstream s), (c, s))
COPY(cuMemcpy3DPeer,         _ptds, bytes_of(c), kLink, kDefault, (const CUDA_MEMCPY3D_PEER* c), (c))
COPY(cuMemcpy3DPeerAsync,    _ptsz, bytes_of(c), kLink, s, (const CUDA_MEMCPY3D_PEER* c, CUstream s), (c, s))
COPY(cuMemcpyPeer,           _ptds, n, kLink, kDefault, (CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n), (to, tc, from, fc, n))
COPY(cuMemcpyPeerAsync,      _ptsz, n, kLink, s, (CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n, CUstream s), (to, tc, from, fc, n, s))

// CUDA 12.8 had a failure index here, 13.0 (_v2) has not.
COPY(cuMemcpyBatchAsync,    _ptsz, sum(n, count), kLink, s, (CUdeviceptr* to, CUdeviceptr* from, size_t* n, size_t count, CUmemcpyAttributes* a, size_t* ai, size_t na, size_t* failed, CUstream s), (to, from, n, count, a, ai, na, failed, s))
COPY(cuMemcpyBatchAsync_v2, _ptsz, sum(n, count), kLink, s, (CUdeviceptr* to, CUdeviceptr* from, size_t* n, size_t count, CUmemcpyAttributes* a, size_t* ai, size_t na, CUstream s), (to, from, n, count, a, ai, na, s))
COPY(cuMemcpy3DBatchAsync,    _ptsz, 0, kLink, s, (size_t count, CUDA_MEMCPY3D_BATCH_OP* o, size_t* failed, unsigned long long flags, CUstream s), (count, o, failed, flags, s))
COPY(cuMemcpy3DBatchAsync_v2, _ptsz, 0, kLink, s, (size_t count, CUDA_MEMCPY3D_BATCH_OP* o, unsigned long long flags, CUstream s), (count, o, flags, s))

COPY(cuMemcpyWithAttributesAsync,   _ptsz, n, kLink, s, (CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes* a, CUstream s), (to, from, n, a, s))
COPY(cuMemcpy3DWithAttributesAsync, _ptsz, 0, kLink, s, (CUDA_MEMCPY3D_BATCH_OP* o, unsigned long long flags, CUstream s), (o, flags, s))
COPY(cuMemBatchDecompressAsync,     _ptsz, 0, kDevice, s, (CUmemDecompressParams* p, size_t count, unsigned flags, size_t* failed, CUstream s), (p, count, flags, failed, s))

COPY(cuMemPrefetchAsync,      _ptsz, n, kLink, s, (CUdeviceptr p, size_t n, CUdevice to, CUstream s), (p, n, to, s))
COPY(cuMemPrefetchAsync_v2,   _ptsz, n, kLink, s, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream s), (p, n, to, flags, s))
COPY(cuMemPrefetchBatchAsync, _ptsz, sum(n, count), kLink, s, (CUdeviceptr* p, size_t* n, size_t count, CUmemLocation* to, size_t* ti, size_t nt, unsigned long long flags, CUstream s), (p, n, count, to, ti, nt, flags, s))
COPY(cuMemDiscardAndPrefetchBatchAsync, _ptsz, sum(n, count), kLink, s, (CUdeviceptr* p, size_t* n, size_t count, CUmemLocation* to, size_t* ti, size_t nt, unsigned long long flags, CUstream s), (p, n, count, to, ti, nt, flags, s))

COPY(cuMemsetD8_v2,       _ptds, n,     kDevice, kDefault, (CUdeviceptr to, unsigned char v, size_t n), (to, v, n))
COPY(cuMemsetD16_v2,      _ptds, n * 2, kDevice, kDefault, (CUdeviceptr to, unsigned short v, size_t n), (to, v, n))
COPY(cuMemsetD32_v2,      _ptds, n * 4, kDevice, kDefault, (CUdeviceptr to, unsigned v, size_t n), (to, v, n))
COPY(cuMemsetD8Async,     _ptsz, n,     kDevice, s, (CUdeviceptr to, unsigned char v, size_t n, CUstream s), (to, v, n, s))
COPY(cuMemsetD16Async,    _ptsz, n * 2, kDevice, s, (CUdeviceptr to, unsigned short v, size_t n, CUstream s), (to, v, n, s))
COPY(cuMemsetD32Async,    _ptsz, n * 4, kDevice, s, (CUdeviceptr to, unsigned v, size_t n, CUstream s), (to, v, n, s))
COPY(cuMemsetD2D8_v2,     _ptds, w * h,     kDevice, kDefault, (CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h), (to, pitch, v, w, h))
COPY(cuMemsetD2D16_v2,    _ptds, w * h * 2, kDevice, kDefault, (CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h), (to, pitch, v, w, h))
COPY(cuMemsetD2D32_v2,    _ptds, w * h * 4, kDevice, kDefault, (CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h), (to, pitch, v, w, h))
COPY(cuMemsetD2D8Async,   _ptsz, w * h,     kDevice, s, (CUdeviceptr to, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s), (to, pitch, v, w, h, s))
COPY(cuMemsetD2D16Async,  _ptsz, w * h * 2, kDevice, s, (CUdeviceptr to, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s), (to, pitch, v, w, h, s))
COPY(cuMemsetD2D32Async,  _ptsz, w * h * 4, kDevice, s, (CUdeviceptr to, size_t pitch, unsigned v, size_t w, size_t h, CUstream s), (to, pitch, v, w, h, s))

COPY(cuMemDiscardBatchAsync, _ptsz, 0, kDevice, s, (CUdeviceptr* p, size_t* n, size_t count, unsigned long long flags, CUstream s), (p, n, count, flags, s))
COPY(cuStreamAttachMemAsync, _ptsz, 0, kDevice, s, (CUstream s, CUdeviceptr p, size_t n, unsigned flags), (s, p, n, flags))
COPY(cuFabricCpyBatchAsync,  _ptsz, 0, kLink, s, (size_t count, CUDA_FABRIC_COPY_BATCH_OP* o, unsigned long long flags, CUstream s), (count, o, flags, s))

// Addresses and sizes of 32 bits, as before CUDA 3.2; streams of a thread's own are younger.
AWAITED(cuMemcpyHtoD,       false, n, (CUdeviceptr_v1 to, const void* from, unsigned n), (to, from, n))
AWAITED(cuMemcpyDtoH,       false, n, (void* to, CUdeviceptr_v1 from, unsigned n), (to, from, n))
GATED(cuMemcpyDtoD,         false, n, kDevice, kDefault, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned n), (to, from, n))
GATED(cuMemcpyDtoA,         false, n, kDevice, kDefault, (CUarray to, unsigned at, CUdeviceptr_v1 from, unsigned n), (to, at, from, n))
GATED(cuMemcpyAtoD,         false, n, kDevice, kDefault, (CUdeviceptr_v1 to, CUarray from, unsigned at, unsigned n), (to, from, at, n))
GATED(cuMemcpyAtoA,         false, n, kDevice, kDefault, (CUarray to, unsigned to_at, CUarray from, unsigned at, unsigned n), (to, to_at, from, at, n))
AWAITED(cuMemcpyHtoA,       false, n, (CUarray to, unsigned at, const void* from, unsigned n), (to, at, from, n))
AWAITED(cuMemcpyAtoH,       false, n, (void* to, CUarray from, unsigned at, unsigned n), (to, from, at, n))
AWAITED(cuMemcpy2D,         false, bytes_of(c), (const CUDA_MEMCPY2D_v1* c), (c))
AWAITED(cuMemcpy2DUnaligned, false, bytes_of(c), (const CUDA_MEMCPY2D_v1* c), (c))
AWAITED(cuMemcpy3D,         false, bytes_of(c), (const CUDA_MEMCPY3D_v1* c), (c))
MAY_WAIT(cuMemcpyHtoDAsync, false, n, s, (CUdeviceptr_v1 to, const void* from, unsigned n, CUstream s), (to, from, n, s))
MAY_WAIT(cuMemcpyDtoHAsync, false, n, s, (void* to, CUdeviceptr_v1 from, unsigned n, CUstream s), (to, from, n, s))
GATED(cuMemcpyDtoDAsync,    false, n, kDevice, s, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned n, CUstream s), (to, from, n, s))
MAY_WAIT(cuMemcpyHtoAAsync, false, n, s, (CUarray to, unsigned at, const void* from, unsigned n, CUstream s), (to, at, from, n, s))
MAY_WAIT(cuMemcpyAtoHAsync, false, n, s, (void* to, CUarray from, unsigned at, unsigned n, CUstream s), (to, from, at, n, s))
MAY_WAIT(cuMemcpy2DAsync,   false, bytes_of(c), s, (const CUDA_MEMCPY2D_v1* c, CUstream s), (c, s))
MAY_WAIT(cuMemcpy3DAsync,   false, bytes_of(c), s, (const CUDA_MEMCPY3D_v1* c, CUstream s), (c, s))
GATED(cuMemsetD8,    false, n,                      kDevice, kDefault, (CUdeviceptr_v1 to, unsigned char v, unsigned n), (to, v, n))
GATED(cuMemsetD16,   false, uint64_t(n) * 2,        kDevice, kDefault, (CUdeviceptr_v1 to, unsigned short v, unsigned n), (to, v, n))
GATED(cuMemsetD32,   false, uint64_t(n) * 4,        kDevice, kDefault, (CUdeviceptr_v1 to, unsigned v, unsigned n), (to, v, n))
GATED(cuMemsetD2D8,  false, uint64_t(w) * h,        kDevice, kDefault, (CUdeviceptr_v1 to, unsigned pitch, unsigned char v, unsigned w, unsigned h), (to, pitch, v, w, h))
GATED(cuMemsetD2D16, false, uint64_t(w) * h * 2,    kDevice, kDefault, (CUdeviceptr_v1 to, unsigned pitch, unsigned short v, unsigned w, unsigned h), (to, pitch, v, w, h))
GATED(cuMemsetD2D32, false, uint64_t(w) * h * 4,    kDevice, kDefault, (CUdeviceptr_v1 to, unsigned pitch, unsigned v, unsigned w, unsigned h), (to, pitch, v, w, h))

}  // extern "C"
// clang-format on
