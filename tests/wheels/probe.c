/* Looks the driver up as programs do, and prints the library that answered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("no driver\n");
        return 0;
    }
    Dl_info found;
    void* launch = dlsym(driver, "cuLaunchKernel");
    if (!launch || !dladdr(launch, &found)) return 1;
    printf("%s\n", strrchr(found.dli_fname, '/') + 1);
    return 0;
}
