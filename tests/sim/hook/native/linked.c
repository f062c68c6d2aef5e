// A program linked against the driver: no lookup at all, and the caller of hooked functions before anything else ran.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>

int fake_calls(const char* name);

static CUresult early;
__attribute__((constructor)) static void before_main(void) {
    CUdeviceptr p;
    early = cuMemAlloc_v2(&p, 1 << 20);
}

int main(void) {
    unsigned long long (*used)(int) = (unsigned long long (*)(int))dlsym(RTLD_DEFAULT, "gemlet_test_used");
    printf("early=%d allocs=%d\n", early, fake_calls("cuMemAlloc_v2"));
    cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    printf("launches=%d used=%llu\n", fake_calls("cuLaunchKernel"), used ? used(0) : 0);
    return 0;
}
