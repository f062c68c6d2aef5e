// Looks driver functions up as programs do and prints whose function it got: "hook", "driver" or "null".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char* owner(void* p) {
    Dl_info info;
    if (!p) return "null";
    if (!dladdr(p, &info)) return "unknown";
    if (strstr(info.dli_fname, "libgemhook")) return "hook";
    return strstr(info.dli_fname, "libcuda") ? "driver" : info.dli_fname;
}

static const char* symbol(void* p) {
    Dl_info info;
    return p && dladdr(p, &info) && info.dli_sname && info.dli_saddr == p ? info.dli_sname : "-";
}

static void* driver(void) {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) puts(dlerror()), exit(2);
    return handle;
}

typedef int (*get_v1)(const char*, void**, int, unsigned long long);
typedef int (*get_v2)(const char*, void**, int, unsigned long long, int*);

static int do_dlsym(char** names) {
    void* handle = driver();
    for (; *names; ++names) {
        void* p = dlsym(handle, *names);
        printf("%s %s %s %s\n", *names, owner(p), owner(dlvsym(handle, *names, "DRIVER_1")), symbol(p));
    }
    return 0;
}

static int do_global(char** names) {
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void* program = dlopen(NULL, RTLD_NOW);
    for (; *names; ++names)
        printf("%s %s %s\n", *names, owner(dlsym(RTLD_DEFAULT, *names)), owner(dlsym(program, *names)));
    return 0;
}

// get: version of cuGetProcAddress (1 or 2), then name version flags ...
static int do_get(char** args) {
    int abi = atoi(*args++);
    void* handle = driver();
    get_v1 one = (get_v1)dlsym(handle, "cuGetProcAddress");
    get_v2 two = (get_v2)dlsym(handle, "cuGetProcAddress_v2");
    for (; *args; args += 3) {
        void* p = (void*)-1;
        int status = -1, version = atoi(args[1]);
        unsigned long long flags = strtoull(args[2], NULL, 0);
        int result = abi == 1 ? one(args[0], &p, version, flags) : two(args[0], &p, version, flags, &status);
        printf("%s %d %d %s %s\n", args[0], result, status, p == (void*)-1 ? "untouched" : owner(p), symbol(p));
    }
    return 0;
}

static int do_late(void) {
    void* program = dlopen(NULL, RTLD_NOW);
    for (int i = 0; i < 2; ++i) {
        void* p = i ? dlsym(program, "cuLaunchKernel") : dlsym(RTLD_DEFAULT, "cuLaunchKernel");
        const char* why = dlerror();
        printf("before %s %s\n", owner(p), why && strstr(why, "cuLaunchKernel") ? "explained" : "silent");
    }
    printf("after %s\n", owner(dlsym(driver(), "cuLaunchKernel")));
    return 0;
}

static int do_errors(void) {
    void* handle = driver();
    errno = 77;
    void* p = dlsym(handle, "cuLaunchKernel");
    printf("found %s errno=%d dlerror=%s\n", owner(p), errno, dlerror() ? "set" : "none");
    errno = 78;
    p = dlsym(handle, "cuNoSuchFunction");
    const char* why = dlerror();
    printf("missing %s dlerror=%s\n", owner(p), why && strstr(why, "cuNoSuchFunction") ? "its own" : "wrong");
    p = dlsym(handle, "cuCtxCreate_v4");  // hooked, but maybe not in this driver
    why = dlerror();
    printf("absent %s dlerror=%s\n", owner(p), !why ? "none" : strstr(why, "cuCtxCreate_v4") ? "its own" : "wrong");
    dlsym(handle, "cuNoSuchFunction");
    dlsym(handle, "cuLaunchKernel");
    printf("cleared dlerror=%s\n", dlerror() ? "set" : "none");
    return 0;
}

static pthread_barrier_t gate;
static void* handle_of_all;

static void* racer(void* unused) {
    pthread_barrier_wait(&gate);
    return dlsym(handle_of_all, "cuLaunchKernel");
}

static int do_threads(void) {
    enum { kThreads = 16 };
    pthread_t threads[kThreads];
    int hooked = 0;
    handle_of_all = driver();
    pthread_barrier_init(&gate, NULL, kThreads);
    for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, racer, NULL);
    for (int i = 0; i < kThreads; ++i) {
        void* p;
        pthread_join(threads[i], &p);
        hooked += strcmp(owner(p), "hook") == 0;
    }
    printf("hooked %d of %d\n", hooked, kThreads);
    return 0;
}

static int do_fork(char** args) {
    void* handle = driver();
    if (args[0]) {  // after exec
        printf("exec %s\n", owner(dlsym(handle, "cuLaunchKernel")));
        return 0;
    }
    int (*allocate)(unsigned long long*, size_t) =
        (int (*)(unsigned long long*, size_t))dlsym(handle, "cuMemAlloc_v2");
    unsigned long long (*held)(int) = (unsigned long long (*)(int))dlsym(RTLD_DEFAULT, "gemlet_test_held");
    unsigned long long p;
    ((int (*)(unsigned))dlsym(handle, "cuInit"))(0);
    allocate(&p, 4 << 20);
    printf("parent %llu\n", held ? held(0) : 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("child %s %llu\n", owner(dlsym(handle, "cuLaunchKernel")), held ? held(0) : 0);
        fflush(stdout);
        execl("/proc/self/exe", "probe", "fork", "again", (char*)NULL);
        _exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %d held %llu\n", status, held ? held(0) : 0);
    return 0;
}

// Its instructions are counted.
__attribute__((noinline)) void look_up(int times) {
    for (int i = 0; i < times; ++i) dlsym(RTLD_DEFAULT, "malloc");
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "dlsym")) return do_dlsym(argv + 2);
    if (!strcmp(what, "global")) return do_global(argv + 2);
    if (!strcmp(what, "get")) return do_get(argv + 2);
    if (!strcmp(what, "late")) return do_late();
    if (!strcmp(what, "errors")) return do_errors();
    if (!strcmp(what, "threads")) return do_threads();
    if (!strcmp(what, "fork")) return do_fork(argv + 2);
    if (!strcmp(what, "cost")) return look_up(atoi(argv[2])), 0;
    return 1;
}
