// A program that does what it is told on its standard input, and knows nothing of gemlet. One answer a line.
#define _GNU_SOURCE  // RTLD_DEFAULT
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(call)                                                          \
    do {                                                                    \
        CUresult r_ = (call);                                               \
        if (r_ != CUDA_SUCCESS) {                                           \
            fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, (int)r_); \
            printf("failed %d\n", (int)r_);                                 \
            fflush(stdout);                                                 \
            _exit(3);                                                       \
        }                                                                   \
    } while (0)

static const char* kImage =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns) { ret; }\n"
    ".visible .entry add(.param .u64 base, .param .u64 count, .param .u64 value) { ret; }\n";

enum { kMost = 4096 };
typedef struct {
    CUdeviceptr address;
    uint64_t bytes, seed, added;
} Piece;
static Piece pieces[kMost];
static CUdevice device;
static CUcontext context, other;
static CUfunction spin, add;
static CUstream stream, second;
static CUmemoryPool pool;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t pattern(uint64_t seed, uint64_t i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

static CUresult launch_spin(uint64_t ns) {
    void* arguments[] = {&ns};
    return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL);
}

// The whole words of a piece; what is behind them is set by copies only.
static CUresult launch_add(Piece* p, uint64_t value) {
    uint64_t base = p->address, count = p->bytes / 8;
    void* arguments[] = {&base, &count, &value};
    if (count == 0) return CUDA_SUCCESS;
    CUresult r = cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL);
    if (r == CUDA_SUCCESS) p->added += value;
    return r;
}

static void* free_piece(void* piece) {
    Piece* p = piece;
    MUST(cuCtxSetCurrent(context));
    CUresult r = cuMemFree(p->address);
    if (r == CUDA_SUCCESS) p->address = 0;
    return (void*)(intptr_t)r;
}

// What this program has on a device that it has made its own once.
typedef struct {
    CUcontext context;
    CUstream stream;
    CUfunction spin, add;
} Here;
static Here here[16];

static void elsewhere(Here* there, Piece* p, uint64_t value) {
    CUevent before, after;
    CUcontext was;
    MUST(cuCtxGetCurrent(&was));
    MUST(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(before, stream));
    MUST(cuStreamWaitEvent(there->stream, before, 0));
    MUST(cuCtxSetCurrent(there->context));
    uint64_t base = p->address, count = p->bytes / 8, ns = 5000000;
    void *arguments[] = {&base, &count, &value}, *times[] = {&ns};
    MUST(cuEventCreate(&after, CU_EVENT_DISABLE_TIMING));
    MUST(cuLaunchKernel(there->add, 1, 1, 1, 32, 1, 1, 0, there->stream, arguments, NULL));
    MUST(cuLaunchKernel(there->spin, 1, 1, 1, 32, 1, 1, 0, there->stream, times, NULL));
    MUST(cuEventRecord(after, there->stream));
    MUST(cuCtxSetCurrent(was));
    MUST(cuStreamWaitEvent(stream, after, 0));
}

static void fill(Piece* p, uint64_t seed) {
    uint64_t words = (p->bytes + 7) / 8;
    uint64_t* host = malloc(words * 8);
    for (uint64_t i = 0; i < words; ++i) host[i] = pattern(seed, i);
    MUST(cuMemcpyHtoD(p->address, host, p->bytes));
    p->seed = seed;
    p->added = 0;
    free(host);
}

static int wrong_bytes(Piece* p) {
    uint64_t words = (p->bytes + 7) / 8;
    uint64_t* host = calloc(words, 8);
    MUST(cuStreamSynchronize(stream));  // the copy is not ordered behind this one
    MUST(cuMemcpyDtoH(host, p->address, p->bytes));
    int bad = 0;
    for (uint64_t i = 0; i < words; ++i) {
        uint64_t expected = pattern(p->seed, i) + (i < p->bytes / 8 ? p->added : 0);
        uint64_t bytes = i == p->bytes / 8 ? p->bytes % 8 : 8;
        bad += memcmp(&host[i], &expected, bytes) != 0;
    }
    free(host);
    return bad;
}

// Words [from, to) that are not what was written.
static int wrong_words(Piece* p, uint64_t from, uint64_t to) {
    uint64_t* host = malloc((to - from) * 8);
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(host, p->address + from * 8, (to - from) * 8));
    int bad = 0;
    for (uint64_t i = from; i < to; ++i) bad += host[i - from] != pattern(p->seed, i) + p->added;
    free(host);
    return bad;
}

static int wrong_anywhere(void) {
    int bad = 0;
    for (int i = 0; i < kMost; ++i)
        if (pieces[i].address) bad += wrong_bytes(&pieces[i]);
    return bad;
}

static CUresult allocate_in_green(Piece* p, uint64_t bytes) {
    CUdevResource all, part;
    CUdevResourceDesc description;
    CUgreenCtx green;
    CUcontext of_green;
    CUdevice device;
    unsigned groups = 1;
    MUST(cuCtxGetDevice(&device));
    MUST(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 16));
    MUST(cuDevResourceGenerateDesc(&description, &part, 1));
    MUST(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(&of_green, green));
    MUST(cuCtxSetCurrent(of_green));
    CUresult r = cuMemAlloc(&p->address, bytes);
    p->bytes = bytes;
    MUST(cuCtxSetCurrent(context));
    MUST(cuGreenCtxDestroy(green));
    return r;
}

static volatile int released;
static void wait_for_release(void* unused) {
    while (!released) usleep(1000);
}

static void* free_behind_the_full_queue(void* piece) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemFreeAsync(((Piece*)piece)->address, second));
    return NULL;
}

#include "virtual_verbs.h"

// Kernels on every piece, again and again, from several threads; progress is a line each 50 ms.
static volatile int going;
static void* add_all(void* unused) {
    MUST(cuCtxSetCurrent(context));
    while (going) {
        MUST(launch_spin(200000));
        usleep(50);
    }
    return NULL;
}

static uint64_t work(double seconds, int threads) {
    pthread_t more[16];
    going = 1;
    for (int i = 0; i < threads; ++i) pthread_create(&more[i], NULL, add_all, NULL);
    uint64_t rounds = 0;
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end; ++rounds) {
        for (int i = 0; i < kMost; ++i)
            if (pieces[i].address) MUST(launch_add(&pieces[i], 1));
        MUST(launch_spin(1000000));
        MUST(cuStreamSynchronize(stream));
    }
    going = 0;
    for (int i = 0; i < threads; ++i) pthread_join(more[i], NULL);
    return rounds;
}

// What native/hook/swap/declare.h declares, if the library is there.
static int (*iteration_ends)(void);
static uint64_t (*dead_begin)(void);
static int64_t (*declare_dead)(uint64_t, const uint64_t*, const uint64_t*, uint64_t);
static void (*declare_live)(void);

// Iterations: piece 1 is scratch, dead at the end of each. How often that was said is the answer.
static uint64_t train(double seconds) {
    static unsigned char value;  // another each time, so that it never looks unchanged
    uint64_t told = 0;
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        MUST(cuMemsetD8Async(pieces[1].address, ++value, pieces[1].bytes, stream));
        MUST(launch_add(&pieces[0], 1));
        MUST(launch_spin(5000000));
        MUST(cuStreamSynchronize(stream));
        unsigned char last = 0;
        MUST(cuMemcpyDtoH(&last, pieces[1].address + pieces[1].bytes - 1, 1));
        if (last != value) return UINT64_MAX;
        if (iteration_ends() == 0) continue;
        uint64_t ticket = dead_begin(), start = pieces[1].address, bytes = pieces[1].bytes;
        told += declare_dead(ticket, &start, &bytes, 1) == (int64_t)bytes;
    }
    return told;
}

static void attributes(Piece* p, uint64_t offset) {
    CUcontext in = NULL;
    unsigned type = 9;
    CUdeviceptr start = 0, base = 0, pointer = 0;
    size_t size = 0, range = 0;
    int ordinal = 9, managed = 9;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* out[] = {&in, &type, &pointer, &ordinal, &start, &size, &managed};
    CUdeviceptr at = p->address + offset;
    CUresult r = cuPointerGetAttributes(7, which, out, at);
    unsigned single = 9;
    CUresult r1 = cuPointerGetAttribute(&single, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
    CUresult r2 = cuMemGetAddressRange(&base, &range, at);
    printf("%d %d %d %d %u %u %d %lld %zu %lld %zu %d\n", r, r1, r2, in == context, type, single, ordinal,
           (long long)(start - p->address), size, (long long)(base - p->address), range, pointer == at && !managed);
}

// Threads that end, one after the other, each with its own default stream.
static void* free_own(void* piece) {
    uint64_t ns = 500000000;
    void* arguments[] = {&ns};
    MUST(cuCtxSetCurrent(context));
    MUST(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, arguments, NULL));
    MUST(cuMemFreeAsync(((Piece*)piece)->address, CU_STREAM_PER_THREAD));
    return NULL;
}
static void* allocate_own(void* piece) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAllocAsync(&((Piece*)piece)->address, ((Piece*)piece)->bytes, CU_STREAM_PER_THREAD));
    return NULL;
}

static volatile int no_threads;  // so many times the system allows none but the driver's

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    static __typeof__(&pthread_create) real;
    if (!real) real = (__typeof__(&pthread_create))dlsym(RTLD_NEXT, "pthread_create");
    Dl_info caller;
    if (no_threads && dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libgemhook")) {
        --no_threads;
        return EAGAIN;
    }
    return real(thread, attributes, run, argument);
}

static int quits;

// Registered before cuInit, so it runs when the driver is gone: what still calls the driver then is seen.
static void linger(void) {
    if (quits) usleep(50000);
}

int main(void) {
    atexit(linger);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    CUmodule module;
    MUST(cuModuleLoadData(&module, kImage));
    MUST(cuModuleGetFunction(&spin, module, "spin"));
    MUST(cuModuleGetFunction(&add, module, "add"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    iteration_ends = dlsym(RTLD_DEFAULT, "gemlet_iteration_ends");
    dead_begin = dlsym(RTLD_DEFAULT, "gemlet_dead_begin");
    declare_dead = dlsym(RTLD_DEFAULT, "gemlet_declare_dead");
    declare_live = dlsym(RTLD_DEFAULT, "gemlet_declare_live");
    uint64_t ticket = 0;
    printf("ready\n");
    fflush(stdout);
    char line[256], verb[32];
    CUgraph graph;
    CUgraphExec run = NULL;
    while (fgets(line, sizeof line, stdin)) {
        uint64_t a = 0, b = 0, c = 0;
        double x = 0;
        if (sscanf(line, "%31s %lu %lu %lu", verb, &a, &b, &c) < 1) continue;
        Piece* p = &pieces[a % kMost];
        if (virtual_verb(line)) {
        } else if (!strcmp(verb, "alloc")) {
            CUresult r = cuMemAlloc(&p->address, b);
            if (r != CUDA_SUCCESS) p->address = 0;
            p->bytes = b;
            printf("%d\n", r);
        } else if (!strcmp(verb, "green")) {  // allocates while a green context is current, which then ends
            printf("%d\n", allocate_in_green(p, b));
        } else if (!strcmp(verb, "pitch")) {
            size_t pitch = 0;
            CUresult r = cuMemAllocPitch(&p->address, &pitch, b, c, 4);
            p->bytes = pitch * c;
            printf("%d %zu\n", r, pitch);
        } else if (!strcmp(verb, "array")) {
            CUarray array;
            CUDA_ARRAY_DESCRIPTOR d = {1024, b / 4096, CU_AD_FORMAT_FLOAT, 1};
            printf("%d\n", cuArrayCreate(&array, &d));
        } else if (!strcmp(verb, "device")) {
            MUST(cuDeviceGet(&device, (int)a));
            MUST(cuDevicePrimaryCtxRetain(&context, device));
            MUST(cuCtxSetCurrent(context));
            MUST(cuModuleLoadData(&module, kImage));
            MUST(cuModuleGetFunction(&spin, module, "spin"));
            MUST(cuModuleGetFunction(&add, module, "add"));
            MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            here[device] = (Here){context, stream, spin, add};
            printf("0\n");
        } else if (!strcmp(verb, "context")) {  // 1: another on the device, 2: it goes, and the primary is current
            if (a == 1) {
                CUctxCreateParams params = {0};
                MUST(cuCtxCreate(&other, &params, 0, device));
            } else {
                MUST(cuCtxDestroy(other));
                MUST(cuCtxSetCurrent(context));
            }
            printf("0\n");
        } else if (!strcmp(verb, "copy")) {  // from piece a to piece b
            MUST(cuMemcpyDtoD(pieces[b].address, p->address, p->bytes));
            pieces[b].seed = p->seed;
            pieces[b].added = p->added;
            printf("0\n");
        } else if (!strcmp(verb, "fork")) {  // the child only computes; what its copies of our objects do is no good
            pid_t child = fork();
            if (child == 0) {
                size_t free_bytes = 0, total = 0;
                int bad = cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS;
                bad += cuMemFree(p->address) == CUDA_SUCCESS;
                if (iteration_ends)
                    bad += iteration_ends() != 0 || declare_dead(dead_begin(), (uint64_t*)&p->address, &a, 1) > 0;
                _exit(bad);
            }
            int status = -1;
            waitpid(child, &status, 0);
            printf("%d\n", status);
        } else if (!strcmp(verb, "pool")) {  // a: its most bytes, b: what it is for
            CUmemPoolProps props = {0};
            props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            props.maxSize = a;
            props.usage = (unsigned short)b;
            props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            printf("%d\n", cuMemPoolCreate(&pool, &props));
        } else if (!strcmp(verb, "default")) {
            printf("%d\n", cuDeviceGetDefaultMemPool(&pool, device));
        } else if (!strcmp(verb, "allocasync")) {  // c: on the second stream
            CUresult r = pool ? cuMemAllocFromPoolAsync(&p->address, b, pool, c ? second : stream)
                              : cuMemAllocAsync(&p->address, b, c ? second : stream);
            if (r != CUDA_SUCCESS) p->address = 0;
            p->bytes = b;
            printf("%d\n", r);
        } else if (!strcmp(verb, "freeasync")) {
            CUresult r = cuMemFreeAsync(p->address, b == 2 ? NULL : b ? second : stream);
            if (r == CUDA_SUCCESS) p->address = 0;
            printf("%d\n", r);
        } else if (!strcmp(verb, "threads")) {  // whether one was given what the other had just freed
            CUdeviceptr before = p->address;
            pthread_t one;
            pthread_create(&one, NULL, free_own, p);
            pthread_join(one, NULL);
            pthread_create(&one, NULL, allocate_own, p);
            pthread_join(one, NULL);
            printf("%d\n", p->address == before);
        } else if (!strcmp(verb, "trim")) {
            printf("%d\n", cuMemPoolTrimTo(pool, a));
        } else if (!strcmp(verb, "access")) {  // of device a to the pool's memory
            CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {(int)a}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
            printf("%d\n", cuMemPoolSetAccess(pool, &access, 1));
        } else if (!strcmp(verb, "poolbytes")) {
            cuuint64_t used = 0, reserved = 0;
            MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
            MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
            printf("%lu %lu\n", used, reserved);
        } else if (!strcmp(verb, "free")) {
            CUresult r = cuMemFree(p->address);
            if (r == CUDA_SUCCESS) p->address = 0;
            printf("%d\n", r);
        } else if (!strcmp(verb, "freebeside")) {  // by another thread
            pthread_t thread;
            void* r;
            pthread_create(&thread, NULL, free_piece, p);
            pthread_join(thread, &r);
            printf("%d\n", (int)(intptr_t)r);
        } else if (!strcmp(verb, "fill")) {
            fill(p, b);
            printf("0\n");
        } else if (!strcmp(verb, "add")) {
            printf("%d\n", launch_add(p, b));
        } else if (!strcmp(verb, "sync")) {
            printf("%d\n", cuCtxSynchronize());
        } else if (!strcmp(verb, "check")) {
            printf("%d\n", wrong_bytes(p));
        } else if (!strcmp(verb, "all")) {
            printf("%d\n", wrong_anywhere());
        } else if (!strcmp(verb, "words")) {
            printf("%d\n", wrong_words(p, b, c));
        } else if (!strcmp(verb, "poke")) {
            printf("%d\n", cuMemcpyHtoD(p->address + b * 8, &c, 8));
        } else if (!strcmp(verb, "peek")) {
            uint64_t word = 0;
            MUST(cuMemcpyDtoH(&word, p->address + b * 8, 8));
            printf("%lu\n", word);
        } else if (!strcmp(verb, "iteration")) {
            printf("%d\n", iteration_ends());
        } else if (!strcmp(verb, "ticket")) {
            ticket = dead_begin();
            printf("%d\n", ticket != 0);
        } else if (!strcmp(verb, "dead")) {
            uint64_t start = p->address + b;
            printf("%ld\n", declare_dead(ticket, &start, &c, 1));
        } else if (!strcmp(verb, "live")) {
            declare_live();
            printf("0\n");
        } else if (!strcmp(verb, "train")) {
            sscanf(line, "%*s %lf", &x);
            printf("%lu\n", train(x));
        } else if (!strcmp(verb, "address")) {
            printf("%llu\n", (unsigned long long)p->address);
        } else if (!strcmp(verb, "attributes")) {
            attributes(p, b);
        } else if (!strcmp(verb, "retain")) {
            CUmemGenericAllocationHandle handle;
            printf("%d\n", cuMemRetainAllocationHandle(&handle, (void*)p->address));
        } else if (!strcmp(verb, "ipc")) {
            CUipcMemHandle handle;
            printf("%d\n", cuIpcGetMemHandle(&handle, p->address));
        } else if (!strcmp(verb, "info")) {
            size_t free_bytes = 0, total = 0;
            MUST(cuMemGetInfo(&free_bytes, &total));
            printf("%zu %zu\n", free_bytes, total);
        } else if (!strcmp(verb, "spin")) {
            CUresult r = launch_spin(a * 1000);
            if (r == CUDA_SUCCESS) r = cuStreamSynchronize(stream);
            printf("%d\n", r);
        } else if (!strcmp(verb, "launch")) {
            printf("%d\n", launch_spin(a * 1000));
        } else if (!strcmp(verb, "hold")) {  // a host function waits for what comes next
            printf("%d\n", cuLaunchHostFunc(second, wait_for_release, NULL));
        } else if (!strcmp(verb,
                           "brim")) {  // what is held has a queue that is full, and a thread adds a free of piece a
            CUevent event;
            pthread_t thread;
            MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            for (int i = 1; i < 1022; ++i) MUST(cuEventRecord(event, second));
            pthread_create(&thread, NULL, free_behind_the_full_queue, p);
            usleep(300000);
            printf("0\n");
        } else if (!strcmp(verb, "release")) {  // by what follows a kernel
            CUresult r = launch_spin(a * 1000);
            if (r == CUDA_SUCCESS) r = cuStreamSynchronize(stream);
            released = 1;
            printf("%d\n", r == CUDA_SUCCESS ? cuStreamSynchronize(second) : r);
        } else if (!strcmp(verb, "query")) {
            printf("%d\n", cuStreamQuery(stream));
        } else if (!strcmp(verb, "work")) {
            sscanf(line, "%*s %lf %lu", &x, &b);
            printf("%lu\n", work(x, (int)b));
        } else if (!strcmp(verb, "write")) {
            printf("%d\n", cuStreamWriteValue32(stream, p->address, (cuuint32_t)b, 0));
        } else if (!strcmp(verb, "capture")) {
            MUST(cuStreamBeginCapture(stream, (CUstreamCaptureMode)a));
            printf("0\n");
        } else if (!strcmp(verb, "elsewhere")) {  // device a adds c to piece b, in the order of this device's stream
            elsewhere(&here[a], &pieces[b], c);
            printf("0\n");
        } else if (!strcmp(verb, "abandon")) {  // a context goes while a stream of its is captured
            CUctxCreateParams params = {0};
            CUstream captured;
            MUST(cuCtxCreate(&other, &params, 0, device));
            MUST(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
            MUST(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
            MUST(cuCtxDestroy(other));
            MUST(cuCtxSetCurrent(context));
            printf("0\n");
        } else if (!strcmp(verb, "endcapture")) {
            CUresult r = cuStreamEndCapture(stream, &graph);
            if (r == CUDA_SUCCESS) r = cuGraphInstantiate(&run, graph, 0);
            printf("%d\n", r);
        } else if (!strcmp(verb, "replay")) {
            CUresult r = cuGraphLaunch(run, stream);
            if (r == CUDA_SUCCESS) p->added += b;
            if (r == CUDA_SUCCESS) r = cuStreamSynchronize(stream);
            printf("%d\n", r);
        } else if (!strcmp(verb, "threadless")) {  // the next so many times
            no_threads = (int)a;
            printf("0\n");
        } else if (!strcmp(verb, "quit")) {
            usleep((unsigned)a * 1000);
            quits = 1;
            exit(0);
        } else if (!strcmp(verb, "destroy")) {
            MUST(cuStreamDestroy(stream));
            printf("%d\n", cuDevicePrimaryCtxReset(device));
        } else {
            printf("what?\n");
        }
        fflush(stdout);
    }
    return 0;
}
