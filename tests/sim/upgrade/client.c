// A program under a daemon that is replaced: a kernel in every period (0: without a pause), and how long it waited for
// it. Now and then it asks for more memory than its group's limit leaves, which must be refused every time.
// Arguments: device, ns of a kernel, period in us, MiB it holds, MiB that must be refused (0: it does not ask), a file
// for words: rounds, when the last one was, longest wait, when it began the round it is in (0: in none), failures,
// allocations beyond the limit.
#include <cuda.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { kRounds, kAt, kLongest, kBegan, kFailures, kPassed, kWords };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", what, (int)result);
    _exit(3);
}

int main(int argc, char** argv) {
    if (argc != 7) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(argv[6], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, kWords * 8) != 0) return 4;
    volatile uint64_t* words = mmap(NULL, kWords * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    uint64_t ns = strtoull(argv[2], NULL, 10);
    const useconds_t pause_us = (useconds_t)atoi(argv[3]);
    const size_t too_much = (size_t)atoi(argv[5]) << 20;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction spin;
    CUdeviceptr memory;
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, atoi(argv[1])), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuModuleLoadData(&module,
                          ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry spin(.param .u64 ns) { ret; }\n"),
         "cuModuleLoadData");
    must(cuModuleGetFunction(&spin, module, "spin"), "cuModuleGetFunction");
    must(cuMemAlloc(&memory, (size_t)atoi(argv[4]) << 20), "cuMemAlloc");
    getchar();  // all of the group hold theirs
    for (;;) {
        void* arguments[] = {&ns};
        CUdeviceptr more;
        const uint64_t began = now_ns();
        words[kBegan] = began;
        if (cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL) || cuCtxSynchronize())
            ++words[kFailures];
        if (too_much && cuMemAlloc(&more, too_much) == CUDA_SUCCESS) {
            ++words[kPassed];
            cuMemFree(more);
        }
        const uint64_t end = now_ns(), waited = end - began > ns ? end - began - ns : 0;
        words[kBegan] = 0;
        if (waited > words[kLongest]) words[kLongest] = waited;
        words[kAt] = end;
        ++words[kRounds];
        if (pause_us) usleep(pause_us);
    }
}
