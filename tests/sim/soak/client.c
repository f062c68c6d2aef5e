// A client of the soak: on a device, a kernel of 1 ms in every period (0: without a pause), and how long it waited.
// Arguments: device, period in ms, MiB, a file for five words: rounds, when the last one was, longest wait, when it
// began the round it is in (0: in none), failures.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { kRounds, kAt, kLongest, kBegan, kFailures, kWords };

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
    if (argc != 5) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(argv[4], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, kWords * 8) != 0) return 4;
    volatile uint64_t* words = mmap(NULL, kWords * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    const useconds_t pause_us = (useconds_t)atoi(argv[2]) * 1000;
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
    must(cuMemAlloc(&memory, (size_t)atoi(argv[3]) << 20), "cuMemAlloc");
    for (;;) {
        uint64_t ns = 1000000;
        void* arguments[] = {&ns};
        const uint64_t began = now_ns();
        words[kBegan] = began;
        if (cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL) || cuCtxSynchronize())
            ++words[kFailures];
        const uint64_t end = now_ns(), waited = end - began > ns ? end - began - ns : 0;
        words[kBegan] = 0;
        if (waited > words[kLongest]) words[kLongest] = waited;
        words[kAt] = end;
        ++words[kRounds];
        if (pause_us) usleep(pause_us);
    }
}
