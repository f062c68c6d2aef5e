// A CUDA program for the tests: says what the driver tells it, tries to take too much, and works for as long as
// asked.
//
//   probe [SECONDS [MIB]]   output: "total MIB", "refused MIB", "held MIB" where it is to hold memory, then "share PERCENT"
//                           for each second of kernels of 1 ms
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void* Handle;
static void* library;

#define CALL(name, ...)                                               \
    do {                                                              \
        int result = ((int (*)())dlsym(library, #name))(__VA_ARGS__); \
        if (result != 0) {                                            \
            printf("error %s %d\n", #name, result);                   \
            return 1;                                                 \
        }                                                             \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int count, char** arguments) {
    double seconds = count > 1 ? atof(arguments[1]) : 0;
    int device;
    size_t free_bytes, total;
    Handle context, module, function;
    setvbuf(stdout, NULL, _IOLBF, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("error %s\n", dlerror());
        return 1;
    }
    CALL(cuInit, 0);
    // By its UUID, so that this is the share's device even if the driver shows others.
    const char* own = getenv("CUDA_VISIBLE_DEVICES");
    int devices;
    CALL(cuDeviceGetCount, &devices);
    for (int number = devices - 1; number >= 0; --number) {
        unsigned char uuid[16];
        char text[41] = "GPU-";
        CALL(cuDeviceGet, &device, number);
        CALL(cuDeviceGetUuid_v2, uuid, device);
        for (int byte = 0, at = 4; byte < 16; ++byte) {
            if (byte == 4 || byte == 6 || byte == 8 || byte == 10) text[at++] = '-';
            at += sprintf(text + at, "%02x", uuid[byte]);
        }
        if (own && strcmp(own, text) == 0) break;
    }
    CALL(cuCtxCreate_v2, &context, 0, device);
    CALL(cuMemGetInfo_v2, &free_bytes, &total);
    printf("total %zu\n", total >> 20);
    uint64_t pointer;
    int result = ((int (*)(uint64_t*, size_t))dlsym(library, "cuMemAlloc_v2"))(&pointer, total + (1 << 20));
    printf("%s %zu\n", result == 2 ? "refused" : "granted", (total >> 20) + 1);
    if (count > 2) {
        size_t mib = (size_t)atol(arguments[2]);
        CALL(cuMemAlloc_v2, &pointer, mib << 20);
        CALL(cuMemsetD8_v2, pointer, (unsigned char)1, mib << 20);
        printf("held %zu\n", mib);
    }
    const char* image = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin(.param .u64 ns) { ret; }\n";
    CALL(cuModuleLoadData, &module, image);
    CALL(cuModuleGetFunction, &function, module, "spin");
    uint64_t ns = 1000000;
    void* parameters[] = {&ns};
    for (double end = now() + seconds; now() < end;) {
        double begin = now();
        int launches = 0;
        while (now() < begin + 1) {
            CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
            CALL(cuCtxSynchronize);
            ++launches;
        }
        printf("share %.1f\n", launches * 0.1 / (now() - begin));
    }
    printf("done\n");
    return 0;
}
