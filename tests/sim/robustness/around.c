// A program that tries to get around its limits. Each argument is a step; what comes of it is a line of output.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
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

static CUfunction spin;

static int load(void) {
    CUmodule module;
    if (spin) return 0;
    if (DRIVER(cuModuleLoadData)(&module, kImage)) return -1;
    return DRIVER(cuModuleGetFunction)(&spin, module, "spin") ? -2 : 0;
}

static int launch(unsigned long long ns, int times) {
    void* arguments[] = {&ns};
    int result = load();
    while (times-- > 0 && !result) {
        result = (int)DRIVER(cuLaunchKernel)(spin, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL);
        if (times > 0 && !result) result = (int)DRIVER(cuCtxSynchronize)();
    }
    return result;
}

// Milliseconds that 300 ms of work take.
static int work(void) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    const int result = launch(10000000, 30);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return result ? -result : (int)((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000);
}

static void* launch_cancelled(void* unused) {
    if (DRIVER(cuCtxSetCurrent)(context) || load()) return NULL;
    pthread_cancel(pthread_self());  // it ends at the next cancellation point
    launch(1000, 1);
    pthread_testcancel();
    return unused;
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

// MiB of physical memory that it gets while it lets go of each handle and keeps an exported descriptor of it instead.
static int through_descriptors(void) {
    CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
    int granted = 0;
    for (const size_t piece = 256 << 20; granted < 8192; granted += 256) {
        CUmemGenericAllocationHandle handle;
        int fd;
        CUdeviceptr p;
        if (DRIVER(cuMemCreate)(&handle, piece, &property, 0)) break;
        if (DRIVER(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) return -1;
        if (DRIVER(cuMemRelease)(handle)) return -2;
        if (DRIVER(cuMemImportFromShareableHandle)(&handle, (void*)(intptr_t)fd,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
            return -3;
        if (DRIVER(cuMemAddressReserve)(&p, piece, 0, 0, 0)) return -4;
        if (DRIVER(cuMemMap)(p, piece, 0, handle, 0)) break;
    }
    return granted;
}

// A child makes 512 MiB and lives on; opens them here.
static int open_from_child(void) {
    int ends[2];
    CUipcMemHandle handle;
    CUdeviceptr p;
    if (pipe(ends)) return -1;
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        DRIVER(cuInit)(0);
        if (DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) || DRIVER(cuCtxSetCurrent)(context)) _exit(1);
        if (((CUresult (*)(CUdeviceptr*, size_t))dlsym(driver, "cuMemAlloc_v2"))(&p, 512 << 20)) _exit(1);
        if (DRIVER(cuIpcGetMemHandle)(&handle, p)) _exit(1);
        if (write(ends[1], &handle, sizeof handle) < 0) _exit(1);
        close(ends[1]);
        close(ends[0]);
        close(1);
        close(2);
        pause();
    }
    close(ends[1]);
    if (read(ends[0], &handle, sizeof handle) != sizeof handle) return -2;
    DRIVER(cuInit)(0);
    if (DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) || DRIVER(cuCtxSetCurrent)(context)) return -3;
    return (int)((CUresult (*)(CUdeviceptr*, CUipcMemHandle, unsigned))dlsym(driver, "cuIpcOpenMemHandle_v2"))(
        &p, handle, 1);
}

// Asks NVML, which joins the daemon, and forks past libc twice. How many MiB the children get together.
static int fill_in_children(void) {
    void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned long long memory[3];
    void* handle;
    int sum = 0;
    if (!nvml || ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))()) return -1;
    if (((int (*)(unsigned, void**))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &handle)) return -2;
    if (((int (*)(void*, void*))dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(handle, memory)) return -3;
    for (int child = 0; child < 2; ++child) {
        int ends[2], granted = 0;
        if (pipe(ends)) return -4;
        if (syscall(SYS_fork) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            DRIVER(cuInit)(0);
            if (!DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) && !DRIVER(cuCtxSetCurrent)(context)) granted = fill();
            if (write(ends[1], &granted, sizeof granted) < 0) _exit(1);
            close(1);
            close(2);
            pause();
        }
        close(ends[1]);
        if (read(ends[0], &granted, sizeof granted) != sizeof granted) return -5;
        sum += granted;
    }
    return sum;
}

// Everything that takes memory of which one hears little: how many of these calls a full group is refused.
static int little_known(void) {
    unsigned p;
    void* made;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC external = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 64 << 20};
    struct {
        unsigned width, height;
        int format;
        unsigned channels;
    } array = {4096, 4096, CU_AD_FORMAT_FLOAT, 4};
    typedef CUresult (*Call)();
#define REFUSED(name, ...) \
    (((Call)dlsym(driver, #name))(__VA_ARGS__) == CUDA_ERROR_OUT_OF_MEMORY || (say(#name, -1), 0))
    return REFUSED(cuMemAlloc, &p, 64 << 20) + REFUSED(cuMemAllocPitch, &p, &p, 4096, 4096, 4) +
           REFUSED(cuArrayCreate, &made, &array) + REFUSED(cuModuleLoadData, &made, kImage) +
           REFUSED(cuModuleLoadDataEx, &made, kImage, 0, NULL, NULL) + REFUSED(cuModuleLoadFatBinary, &made, kImage) +
           REFUSED(cuModuleLoad, &made, "none") +
           REFUSED(cuLibraryLoadData, &made, kImage, NULL, NULL, 0, NULL, NULL, 0) +
           REFUSED(cuLibraryLoadFromFile, &made, "none", NULL, NULL, 0, NULL, NULL, 0) +
           REFUSED(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, (size_t)1 << 30) +
           REFUSED(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, (size_t)64 << 10) +
           REFUSED(cuGreenCtxCreate, &made, NULL, 0, 1) + REFUSED(cuGraphUpload, NULL, NULL) +
           REFUSED(cuImportExternalMemory, &made, &external) + REFUSED(cuGLCtxCreate_v2, &made, 0, 0) +
           REFUSED(cuVDPAUCtxCreate_v2, &made, 0, 0, 0, NULL);
}

// A graph with two nodes of 768 MiB, one after the other, or both at a time; what came of launching it.
static int launch_graph(int both, int upload) {
    CUgraph graph;
    CUgraphNode made, gone;
    CUgraphExec instance;
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                     .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}},
                                       .bytesize = (size_t)768 << 20};
    if (DRIVER(cuGraphCreate)(&graph, 0) || DRIVER(cuGraphAddMemAllocNode)(&made, graph, NULL, 0, &node)) return -1;
    if (!both) {
        if (DRIVER(cuGraphAddMemFreeNode)(&gone, graph, &made, 1, node.dptr)) return -2;
        made = gone;
    }
    if (DRIVER(cuGraphAddMemAllocNode)(&gone, graph, &made, 1, &node)) return -3;
    if (DRIVER(cuGraphInstantiateWithFlags)(&instance, graph, 0)) return -4;
    if (upload) return (int)DRIVER(cuGraphUpload)(instance, NULL);
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 3 && !result; ++i) result = DRIVER(cuGraphLaunch)(instance, NULL);
    return (int)result;
}

// A thousand signals a second, as profilers send them. Says when it got as many as would fill the time that the hook
// waits, if each counted as a step of it.
static void on_alarm(int number) {
    static int alarms;
    if (++alarms == 400 && write(1, "alarmed 0\n", 10) < 0) abort();
    (void)number;
}

static int alarm_often(void) {
    const struct sigaction action = {.sa_handler = on_alarm};
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    return sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &often, NULL);
}

// So many descriptors are left to it.
static int leave(int descriptors) {
    int next = open("/dev/null", O_RDONLY);
    close(next);
    // Those above are few; the limit counts numbers, and the next ones are free.
    struct rlimit limit = {(rlim_t)(next + descriptors), (rlim_t)(next + descriptors)};
    return setrlimit(RLIMIT_NOFILE, &limit);
}

// Closes everything, and says hello to the daemon by itself, with the bytes of HELLO.
static int close_and_greet(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char hello[4096];
    size_t size = 0;
    const char* digits = getenv("HELLO");
    for (; digits[2 * size] && size < sizeof hello; ++size) sscanf(digits + 2 * size, "%2hhx", (unsigned char*)hello + size);
    strncpy(address.sun_path, getenv("GEMLET_SOCKET"), sizeof address.sun_path - 1);
    close_range(3, ~0u, 0);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr*)&address, sizeof address)) return -1;
    if (send(fd, hello, size, 0) < 0 || recv(fd, hello, sizeof hello, 0) < 0) return -2;
    return 0;
}

// What the hook calls to join ends here, and what it opened for that is closed once the call was made so many times.
static int unplug_connect, unplug_send, unplug_recvmsg;
static int other_files;  // in place of what recvmsg brought, once it was called so many times

static void unplug(int* countdown) {
    if (*countdown && --*countdown == 0) close_range(3, ~0u, 0);
}

static void take_numbers(const struct msghdr* message) {
    for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR((struct msghdr*)message, c))
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
            int own = open(getenv("OWN_FILE"), O_RDWR);
            dup2(own, ((int*)(void*)CMSG_DATA(c))[i]);
            close(own);
        }
}

static jmp_buf before_jump;
static int jumps;  // out of the next message

// Out of a refused allocation, as a program may whose signal handler jumps; then deeper in its stack than before.
static int fill_after_a_jump(int depth) {
    char deeper[512];
    memset(deeper, depth, sizeof deeper);
    if (depth > 0) return fill_after_a_jump(depth - 1) + deeper[1] - depth;
    return fill();
}

static int jump(int depth) {
    if (!setjmp(before_jump)) {
        jumps = 1;
        fill();
    }
    return jumps ? -1 : fill_after_a_jump(depth);
}

long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_sendto && jumps) {
        jumps = 0;
        longjmp(before_jump, 1);
    }
    const long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_connect) unplug(&unplug_connect);
    if (number == SYS_sendto) unplug(&unplug_send);
    if (number == SYS_recvmsg) unplug(&unplug_recvmsg);
    if (number == SYS_recvmsg && other_files && !--other_files) take_numbers((struct msghdr*)a[1]);
    return result;
}

static int no_threads;  // the system allows none but the driver's

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    static __typeof__(&pthread_create) real;
    if (!real) real = (__typeof__(&pthread_create))dlsym(RTLD_NEXT, "pthread_create");
    Dl_info caller;
    if (no_threads && dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libgemhook"))
        return EAGAIN;
    return real(thread, attributes, run, argument);
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
        if (!strcmp(step, "deep")) {  // a library that would rather not see what is preloaded
            void* plugin = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_DEEPBIND);
            say("linked", plugin ? ((int (*)(void))dlsym(plugin, "linked"))() : -1);
            say("looked_up", plugin ? ((int (*)(void))dlsym(plugin, "looked_up"))() : -1);
        }
        if (!strcmp(step, "init")) say(step, (int)DRIVER(cuInit)(0));
        if (!strcmp(step, "context")) {
            CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(&context, 0);
            say(step, (int)(result ? result : DRIVER(cuCtxSetCurrent)(context)));
        }
        if (!strcmp(step, "second")) {
            CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(&context, 1);
            say(step, (int)(result ? result : DRIVER(cuCtxSetCurrent)(context)));
        }
        if (!strcmp(step, "contexts")) say(step, more_contexts());
        if (!strcmp(step, "close")) say(step, close_range(3, ~0u, 0));
        if (!strcmp(step, "threadless")) say(step, (no_threads = 1) - 1);
        sscanf(step, "connect-%d", &unplug_connect);
        sscanf(step, "send-%d", &unplug_send);
        sscanf(step, "recvmsg-%d", &unplug_recvmsg);
        sscanf(step, "other-%d", &other_files);
        if (!strcmp(step, "alarms")) say(step, alarm_often());
        if (!strcmp(step, "greet")) say(step, close_and_greet());
        if (!strncmp(step, "leave", 5)) say("leave", leave(atoi(step + 5)));
        if (!strcmp(step, "fill")) say(step, fill());
        if (!strcmp(step, "launch")) say(step, launch(1000, 1));
        if (!strcmp(step, "cancelled")) {
            pthread_t thread;
            void* result = NULL;
            pthread_create(&thread, NULL, launch_cancelled, NULL);
            pthread_join(thread, &result);
            say(step, result != PTHREAD_CANCELED);
        }
        if (!strcmp(step, "jump")) say(step, jump(0));
        if (!strcmp(step, "jump-deeper")) say(step, jump(8));
        if (!strcmp(step, "work")) say(step, work());
        if (!strcmp(step, "descriptors")) say(step, through_descriptors());
        if (!strcmp(step, "children")) say(step, fill_in_children());
        if (!strcmp(step, "open")) say(step, open_from_child());
        if (!strcmp(step, "graph")) say(step, launch_graph(0, 0));
        if (!strcmp(step, "big-graph")) say(step, launch_graph(1, 0));
        if (!strcmp(step, "big-upload")) say(step, launch_graph(1, 1));
        if (!strcmp(step, "little-known")) say(step, little_known());
        if (!strcmp(step, "wait")) {
            say(step, 0);
            getchar();
        }
    }
    return 0;
}
