// A driver of a few functions: enough to see through which lookup a program reached what. Each call is counted.
// Not a GPU: fake_memory.c hands out numbers. FAKE_OLD: CUDA 11.8. FAKE_PRIVATE: cuGetProcAddress hands out
// addresses that dlsym does not find.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "fake_memory.h"

#ifdef FAKE_OLD
#define VERSION 11080
#else
#define VERSION 13000
#endif

static atomic_int calls[128];
static const char* names[128];
static atomic_int used;

int count(const char* name) {
    int n = atomic_load(&used);
    for (int i = 0; i < n; ++i)
        if (strcmp(names[i], name) == 0) return atomic_fetch_add(&calls[i], 1) + 1;
    int mine = atomic_fetch_add(&used, 1);
    names[mine] = name;
    return atomic_fetch_add(&calls[mine], 1) + 1;
}

int fake_calls(const char* name) {
    for (int i = 0; i < atomic_load(&used); ++i)
        if (strcmp(names[i], name) == 0) return atomic_load(&calls[i]);
    return 0;
}

#define OK(name, parameters)   \
    CUresult name parameters { \
        count(#name);          \
        return CUDA_SUCCESS;   \
    }

OK(cuInit, (unsigned flags))
OK(cuCtxPushCurrent_v2, (CUcontext c))
OK(cuCtxPopCurrent_v2, (CUcontext * c))
OK(cuEventCreate, (CUevent * e, unsigned f))
OK(cuEventDestroy_v2, (CUevent e))
OK(cuEventElapsedTime, (float* t, CUevent a, CUevent b))
OK(cuEventQuery, (CUevent e))
OK(cuEventRecord, (CUevent e, CUstream s))
OK(cuEventRecord_ptsz, (CUevent e, CUstream s))
OK(cuStreamGetCtx, (CUstream s, CUcontext* c))
OK(cuMemPrefetchAsync, (CUdeviceptr p, size_t n, CUdevice d, CUstream s))
OK(cuLaunchKernel, (CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                    CUstream s, void** p, void** x))
OK(cuLaunchKernel_ptsz, (CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                         unsigned h, CUstream s, void** p, void** x))
OK(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t n))
OK(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void* from, size_t n))
OK(cuCtxCreate_v3, (CUcontext * c, CUexecAffinityParam* p, int n, unsigned f, CUdevice d))
OK(cuGetExportTable, (const void** t, const CUuuid* id))
#ifndef FAKE_OLD
OK(cuLaunchKernelEx, (const CUlaunchConfig* c, CUfunction f, void** p, void** x))
OK(cuCtxCreate_v4, (CUcontext * c, CUctxCreateParams* p, unsigned f, CUdevice d))
OK(cuMemPrefetchAsync_v2, (CUdeviceptr p, size_t n, CUmemLocation l, unsigned f, CUstream s))
#endif

CUresult cuCtxGetDevice(CUdevice* d) {
    *d = 0;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* d, int i) {
    *d = i;
    return i == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetUuid(CUuuid* u, CUdevice d) {
    for (int i = 0; i < 16; ++i) u->bytes[i] = (char)i;
    return d == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDriverGetVersion(int* v) {
    *v = VERSION;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr_v1* p, unsigned n) {
    count("cuMemAlloc");
    return CUDA_ERROR_NOT_SUPPORTED;
}
struct entry {
    const char* name;
    int version;
    cuuint64_t stream;  // 0: whatever the flags say
    const char* variant;
    void* address;
};
CUresult cuGetProcAddress(const char*, void**, int, cuuint64_t);
CUresult cuGetProcAddress_v2(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

#ifdef FAKE_PRIVATE
static CUresult private_launch(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                               unsigned h, CUstream s, void** p, void** x) {
    count("private_launch");
    return CUDA_SUCCESS;
}
static CUresult private_launch_ptsz(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e,
                                    unsigned g, unsigned h, CUstream s, void** p, void** x) {
    count("private_launch_ptsz");
    return CUDA_SUCCESS;
}
static CUresult private_create2(CUcontext* c, unsigned f, CUdevice d) {
    return CUDA_SUCCESS + count("private2") * 0;
}
static CUresult private_create3(CUcontext* c, CUexecAffinityParam* p, int n, unsigned f, CUdevice d) {
    return CUDA_SUCCESS + count("private3") * 0;
}
static CUresult private_create4(CUcontext* c, CUctxCreateParams* p, unsigned f, CUdevice d) {
    return CUDA_SUCCESS + count("private4") * 0;
}
#define OWN(exported, hidden) hidden
#else
#define OWN(exported, hidden) exported
#endif

static const struct entry table[] = {
    {"cuInit", 2000, 0, "cuInit", cuInit},
    {"cuMemAlloc", 2000, 0, "cuMemAlloc", cuMemAlloc},
    {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2", cuMemAlloc_v2},
    {"cuMemFree", 3020, 0, "cuMemFree_v2", cuMemFree_v2},
    {"cuMemcpyHtoD", 3020, 0, "cuMemcpyHtoD_v2", cuMemcpyHtoD_v2},
    {"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds", cuMemcpyHtoD_v2_ptds},
    {"cuLaunchKernel", 4000, 0, "cuLaunchKernel", OWN(cuLaunchKernel, private_launch)},
    {"cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz", OWN(cuLaunchKernel_ptsz, private_launch_ptsz)},
    {"cuCtxCreate", 3020, 0, "cuCtxCreate_v2", OWN(cuCtxCreate_v2, private_create2)},
    {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3", OWN(cuCtxCreate_v3, private_create3)},
    {"cuMemPrefetchAsync", 8000, 0, "cuMemPrefetchAsync", cuMemPrefetchAsync},
#ifndef FAKE_OLD
    {"cuCtxCreate", 12050, 0, "cuCtxCreate_v4", OWN(cuCtxCreate_v4, private_create4)},
    {"cuLaunchKernelEx", 11060, 0, "cuLaunchKernelEx", cuLaunchKernelEx},
    {"cuMemPrefetchAsync", 12020, 0, "cuMemPrefetchAsync_v2", cuMemPrefetchAsync_v2},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", cuGetProcAddress_v2},
#endif
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress", cuGetProcAddress},
    {"cuGetExportTable", 3000, 0, "cuGetExportTable", cuGetExportTable},
    {"cuDriverGetVersion", 2020, 0, "cuDriverGetVersion", cuDriverGetVersion},
};

static CUresult look_up(const char* name, void** function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult* status) {
    const struct entry* best = NULL;
    int known = 0;
    if (version > 90000) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < sizeof table / sizeof *table; ++i) {
        const struct entry* e = &table[i];
        if (strcmp(e->name, name) != 0) continue;
        known = 1;
        if (e->version > version || (e->stream && !(flags & e->stream))) continue;
        if (!best || e->version >= best->version) best = e;
    }
    *function = best ? best->address : NULL;
    if (status)
        *status = best    ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
    return look_up(name, function, version, flags, NULL);
}
#ifndef FAKE_OLD
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    return look_up(name, function, version, flags, status);
}
#endif
