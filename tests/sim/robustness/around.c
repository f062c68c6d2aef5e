// A program that tries to get around its limits. Each argument is a step; what comes of it is a line of output.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char* kImage =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry spin(.param .u64 ns) { ret; }\n";
static void* driver;  // functions are looked up here, as programs do that open the driver by themselves
static CUcontext context;

#define DRIVER(name) ((__typeof__(&name))dlsym(driver, #name))

static void say(const char* step, int result) {
    printf("%s %d\n", step, result);
    fflush(stdout);
}

// MiB that it gets in pieces of 64 until it is refused, or has 8 GiB.
static int fill(void) {
    int granted = 0;
    for (CUdeviceptr p; granted < 8192 && ((CUresult (*)(CUdeviceptr*, size_t))dlsym(driver, "cuMemAlloc_v2"))(
                                              &p, 64 << 20) == CUDA_SUCCESS;)
        granted += 64;
    return granted;
}

static int launch(void) {
    CUmodule module;
    CUfunction spin;
    unsigned long long ns = 1000;
    void* arguments[] = {&ns};
    if (DRIVER(cuModuleLoadData)(&module, kImage)) return -1;
    if (DRIVER(cuModuleGetFunction)(&spin, module, "spin")) return -2;
    return (int)DRIVER(cuLaunchKernel)(spin, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL);
}

// How many more contexts it gets.
static int more_contexts(void) {
    int made = 0;
    CUcontext other;
    CUresult (*create)(CUcontext*, unsigned, CUdevice) =
        (CUresult (*)(CUcontext*, unsigned, CUdevice))dlsym(driver, "cuCtxCreate_v2");
    while (made < 16 && create(&other, 0, 0) == CUDA_SUCCESS) ++made;
    DRIVER(cuCtxSetCurrent)(context);
    return made;
}

// So many descriptors are left to it.
static int leave(int descriptors) {
    int next = open("/dev/null", O_RDONLY);
    close(next);
    // Those above are few; the limit counts numbers, and the next ones are free.
    struct rlimit limit = {(rlim_t)(next + descriptors), (rlim_t)(next + descriptors)};
    return setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char** argv) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    for (int i = 1; i < argc; ++i) {
        const char* step = argv[i];
        if (!strcmp(step, "forget")) {
            unsetenv("GEMLET_SOCKET");
            unsetenv("GEMLET_STRICT");
            say(step, unsetenv("GEMLET_GROUP"));
        }
        if (!strcmp(step, "elsewhere")) {
            driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
            say(step, driver != NULL);
        }
        if (!strcmp(step, "plugin")) {  // a library that is linked to the driver
            driver = dlmopen(LM_ID_NEWLM, getenv("PLUGIN"), RTLD_NOW);
            say(step, driver != NULL);
        }
        if (!strcmp(step, "init")) say(step, (int)DRIVER(cuInit)(0));
        if (!strcmp(step, "context")) {
            CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(&context, 0);
            say(step, (int)(result ? result : DRIVER(cuCtxSetCurrent)(context)));
        }
        if (!strcmp(step, "contexts")) say(step, more_contexts());
        if (!strcmp(step, "close")) say(step, close_range(3, ~0u, 0));
        if (!strncmp(step, "leave", 5)) say("leave", leave(atoi(step + 5)));
        if (!strcmp(step, "fill")) say(step, fill());
        if (!strcmp(step, "launch")) say(step, launch());
        if (!strcmp(step, "wait")) {
            say(step, 0);
            getchar();
        }
    }
    return 0;
}
