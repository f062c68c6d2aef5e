// Four threads with a stream each: kernels with effects, events, host functions, copies and pools, all interleaved.
// Then a host function that blocks until another stream's copy is over: it must not keep that copy from moving.
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MUST(call)                                                \
    do {                                                          \
        CUresult r = (call);                                      \
        if (r != CUDA_SUCCESS) {                                  \
            printf("line %d: %s: %d\n", __LINE__, #call, (int)r); \
            exit(1);                                              \
        }                                                         \
    } while (0)

static CUcontext context;
static CUfunction spin, add;
static int host_calls, gate;

static void CUDA_CB count(void* unused) {
    __atomic_fetch_add(&host_calls, 1, __ATOMIC_RELAXED);
}

static void CUDA_CB block(void* unused) {
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE)) usleep(100);
}

static void* work(void* number) {
    CUstream stream;
    CUevent event;
    CUdeviceptr words, piece;
    unsigned long long ns = 20000, n = 100, one = 1, back[100];
    void* spin_arguments[] = {&ns};
    void* add_arguments[] = {&words, &n, &one};
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, (long)number & 1 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    MUST(cuEventCreate(&event, 0));
    MUST(cuMemAlloc(&words, 1 << 20));
    MUST(cuMemsetD8(words, 0, 1 << 20));
    for (int i = 0; i < 200; ++i) {
        MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spin_arguments, 0));
        MUST(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, add_arguments, 0));
        MUST(cuEventRecord(event, stream));
        if (i % 7 == 0) MUST(cuLaunchHostFunc(stream, count, 0));
        if (i % 10 == 0) {
            MUST(cuMemcpyDtoHAsync(back, words, sizeof back, stream));
            MUST(cuStreamSynchronize(stream));
            if (back[50] != (unsigned long long)i + 1) {
                printf("round %d: %llu\n", i, back[50]);
                exit(2);
            }
        }
        if (i % 13 == 0)
            while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) usleep(50);
        if (i % 31 == 0) {
            MUST(cuMemAllocAsync(&piece, 100000, stream));
            MUST(cuMemFreeAsync(piece, stream));
        }
    }
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree(words));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
    return NULL;
}

int main(void) {
    CUmodule module;
    CUstream blocked, moving;
    CUevent moved;
    CUdeviceptr target;
    pthread_t threads[4];
    char bytes[4096] = {0};
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module,
                          ".visible .entry spin(.param .u64 n) { ret; }\n"
                          ".visible .entry add(.param .u64 p, .param .u64 n, .param .u64 v) { ret; }\n"));
    MUST(cuModuleGetFunction(&spin, module, "spin"));
    MUST(cuModuleGetFunction(&add, module, "add"));
    for (long i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, work, (void*)i);
    for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
    if (host_calls != 4 * 29) return 3;

    MUST(cuStreamCreate(&blocked, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&moving, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&moved, 0));
    MUST(cuMemAlloc(&target, sizeof bytes));
    MUST(cuLaunchHostFunc(blocked, block, 0));
    MUST(cuMemcpyHtoDAsync(target, bytes, sizeof bytes, moving));
    MUST(cuEventRecord(moved, moving));
    while (cuEventQuery(moved) == CUDA_ERROR_NOT_READY) usleep(100);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
    MUST(cuDevicePrimaryCtxRelease(0));
    puts("ok");
    return 0;
}
