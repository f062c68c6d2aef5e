// An interposer of dlsym itself, as memory and GL debuggers are. It must see every lookup and keep working.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int lookups;

void* dlsym(void* handle, const char* name) {
    static void* (*next)(void*, const char*);
    if (!next) {
        next = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!next) next = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (!next) next = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    }
    if (strcmp(name, "cuLaunchKernel") == 0) ++lookups;
    return next(handle, name);
}

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "spy saw %d\n", lookups);
}
