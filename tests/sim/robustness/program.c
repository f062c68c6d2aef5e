// The programs of these tests: plain driver API, know nothing of gemlet. The first argument says which.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(call)                                                          \
    do {                                                                    \
        CUresult r_ = (call);                                               \
        if (r_ != CUDA_SUCCESS) {                                           \
            fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, (int)r_); \
            _exit(3);                                                       \
        }                                                                   \
    } while (0)

static const char* kImage =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry spin(.param .u64 ns) { ret; }\n";
static CUdevice device;
static CUcontext context;
static CUfunction spin;
static volatile uint64_t* progress;  // two words in a file the test reads: rounds done, and when the last one was

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void start(void) {
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    CUmodule module;
    MUST(cuModuleLoadData(&module, kImage));
    MUST(cuModuleGetFunction(&spin, module, "spin"));
}

static CUresult launch(uint64_t ns, CUstream stream) {
    void* arguments[] = {&ns};
    return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL);
}

static void show_progress(const char* path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 16) != 0) exit(4);
    progress = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}

static void did_one(void) {
    if (!progress) return;
    progress[0]++;
    progress[1] = now_ns();
}

static void work_for(double seconds) {
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        for (int i = 0; i < 10; ++i) MUST(launch(100000, NULL));
        MUST(cuCtxSynchronize());
        did_one();
    }
}

// Goes on whatever comes of it, until so many launches have failed.
static int insist(int failures) {
    for (int failed = 0; failed < failures;) {
        CUresult r = launch(100000, NULL);
        if (r == CUDA_SUCCESS) r = cuCtxSynchronize();
        failed += r != CUDA_SUCCESS;
        if (r == CUDA_SUCCESS) did_one();
    }
    return 0;
}

// Its own work on the host takes most of the time; what it launches is done long before it waits for it.
static void host_bound(double seconds) {
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        MUST(launch(300000, NULL));
        for (uint64_t until = now_ns() + 1500000; now_ns() < until;) {
        }
        MUST(cuCtxSynchronize());
        did_one();
    }
}

// Waits for each of its long steps in a copy to memory that is not pinned, as PyTorch's tensor.item() does.
static void copy_back(double seconds) {
    CUdeviceptr there;
    int here;
    MUST(cuMemAlloc(&there, sizeof here));
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        MUST(launch(500000000, NULL));
        MUST(launch(50000, NULL));  // too short to be marked at its launch
        MUST(cuMemcpyDtoHAsync(&here, there, sizeof here, NULL));
        did_one();
    }
}

// Has nothing to do most of the time.
static void come_and_go(double seconds) {
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        MUST(launch(100000, NULL));
        MUST(cuCtxSynchronize());
        did_one();
        usleep(30000);
    }
}

// Asks until it is done, of a stream or an event, and sleeps in between.
static void poll_for(double seconds, int events) {
    CUstream stream;
    CUevent event;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        for (int i = 0; i < 20; ++i) MUST(launch(100000, stream));
        MUST(cuEventRecord(event, stream));
        CUresult answer;
        while ((answer = events ? cuEventQuery(event) : cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) usleep(100);
        MUST(answer);
        MUST(cuCtxSynchronize());  // is seen, and finds nothing left to wait for
        did_one();
    }
}

// The waits and questions answer as the driver does, whatever is asked of them. Prints what they say.
static void ask_wrongly(void) {
    CUstream stream;
    CUevent event;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(launch(1000, NULL));  // from here on the hook knows the device
    MUST(cuCtxSynchronize());
    printf("%d %d %d %d %d", cuStreamQuery(stream), cuEventQuery(event), cuEventSynchronize(event),
           cuStreamSynchronize(stream), cuEventSynchronize(NULL));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    printf(" %d", cuStreamQuery(stream));
    CUgraph graph = NULL;
    printf(" %d", cuStreamEndCapture(stream, &graph));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(launch(1000, stream));
    printf(" %d", cuEventQuery(event));
    printf(" %d", cuStreamEndCapture(stream, &graph));
    MUST(cuCtxSetCurrent(NULL));
    printf(" %d %d %d\n", cuCtxSynchronize(), cuStreamQuery(NULL), cuStreamSynchronize(NULL));
}

// Work that cannot begin before this same thread has submitted all of it: a host function in front of it waits.
static volatile int open_gate;
static void CUDA_CB wait_for_gate(void* unused) {
    (void)unused;
    while (!open_gate) usleep(1000);
}

static void work_behind_gates(double seconds) {
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        open_gate = 0;
        MUST(cuLaunchHostFunc(NULL, wait_for_gate, NULL));
        for (int i = 0; i < 8; ++i) MUST(launch(2000000, NULL));
        open_gate = 1;
        MUST(cuCtxSynchronize());
        did_one();
    }
}

// Launches more than the queue has room for, behind work that takes long. It never asks for the end of it.
static void* open_later(void* unused) {
    for (;; usleep(200000)) open_gate = 1;
    return unused;
}

static void flood(double seconds) {
    pthread_t opener;
    pthread_create(&opener, NULL, open_later, NULL);
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        open_gate = 0;
        MUST(cuLaunchHostFunc(NULL, wait_for_gate, NULL));
        for (int i = 0; i < 1500; ++i) MUST(launch(1000, NULL));
        did_one();
    }
}

static void* launch_on(void* stream) {
    MUST(cuCtxSetCurrent(context));
    MUST(launch(1000, (CUstream)stream));
    return NULL;
}

static void* destroy_context(void* other) {
    MUST(cuCtxDestroy((CUcontext)other));
    return NULL;
}

// The same of a stream whose context another thread destroys meanwhile, which waits for its work.
static int beside_end_of_context(const char* whose) {
    const int own = !strcmp(whose, "hook");
    CUcontext other;
    CUstream full, third;
    CUevent event;
    pthread_t ending;
    MUST(cuCtxCreate(&other, NULL, 0, device));
    MUST(cuStreamCreate(&full, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUmodule module;
    CUfunction there, here = spin;
    MUST(cuModuleLoadData(&module, kImage));
    MUST(cuModuleGetFunction(&there, module, "spin"));
    open_gate = 0;
    MUST(cuLaunchHostFunc(full, wait_for_gate, NULL));
    for (int i = 4; i < 1022; ++i) MUST(cuEventRecord(event, full));
    spin = there;
    if (own) MUST(launch(1000, full));
    spin = here;
    usleep(300000);
    MUST(cuCtxSetCurrent(context));
    pthread_create(&ending, NULL, destroy_context, other);
    usleep(300000);
    MUST(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    MUST(launch(1000, third));
    MUST(cuStreamSynchronize(third));
    open_gate = 1;
    pthread_join(ending, NULL);
    MUST(cuCtxSynchronize());
    return 0;
}

static CUgraphExec graph_with_memory(void);
static void* launch_graphs_on(void* stream) {
    MUST(cuCtxSetCurrent(context));
    CUgraphExec graph = graph_with_memory();
    for (int i = 0; i < 30; ++i) MUST(cuGraphLaunch(graph, (CUstream)stream));
    return NULL;
}

// A thread is in a call for a stream whose queue is full, and which goes on once this one has done something else.
// That thread is one of the program's, or the hook's own, which marks what was launched before the queue was full.
static int beside_full_queue(const char* what, const char* whose) {
    const int own = !strcmp(whose, "hook");
    CUstream full, other;
    CUevent event;
    pthread_t waiting, launching;
    MUST(cuStreamCreate(&full, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    open_gate = 0;
    MUST(cuLaunchHostFunc(full, wait_for_gate, NULL));
    const int left = !strcmp(what, "graph") ? 40 + atoi(whose) : own ? 4 : 1;
    for (int i = left; i < 1022; ++i) MUST(cuEventRecord(event, full));
    if (own) MUST(launch(1000, full));  // timed by two events
    const int launches = !own && strcmp(what, "graph");
    if (launches) pthread_create(&waiting, NULL, launch_on, full);
    usleep(300000);
    if (!strcmp(what, "capture")) {
        CUgraph graph;
        MUST(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
        MUST(launch(1000, other));
        MUST(cuStreamEndCapture(other, &graph));
    }
    if (!strcmp(what, "graph")) {  // so full that either a launch waits, or what the hook does behind it
        size_t bytes, total;
        pthread_create(&launching, NULL, launch_graphs_on, full);
        usleep(300000);
        MUST(cuMemGetInfo(&bytes, &total));
    }
    if (!strcmp(what, "launch"))
        for (int i = 0; i < 600; ++i) MUST(launch(20000, other));
    if (!strcmp(what, "stream")) {
        CUstream third;
        MUST(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
        MUST(launch(1000, third));
        MUST(cuStreamDestroy(third));
    }
    open_gate = 1;
    if (launches) pthread_join(waiting, NULL);
    if (!strcmp(what, "graph")) pthread_join(launching, NULL);
    MUST(cuCtxSynchronize());
    return 0;
}

static volatile int captured;

static void* launch_meanwhile(void* unused) {
    MUST(cuCtxSetCurrent(context));
    CUstream own;
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    while (!captured) MUST(launch(400000, own));
    MUST(cuStreamSynchronize(own));
    return NULL;
}

// One thread captures, in the mode in which others must not do what is not safe meanwhile; launches are safe.
static int capture_beside(void) {
    pthread_t launcher;
    CUstream stream;
    CUgraph graph;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_create(&launcher, NULL, launch_meanwhile, NULL);
    usleep(100000);
    for (int i = 0; i < 100; ++i) {
        MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (int j = 0; j < 3; ++j) MUST(launch(1000, stream));
        usleep(3000);
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphDestroy(graph));
        usleep(3000);
    }
    captured = 1;
    pthread_join(launcher, NULL);
    return 0;
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr, size_t, CUdevice, CUstream);

static void* prefetch_meanwhile(void* managed) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemPrefetchAsync_ptsz(*(CUdeviceptr*)managed, 1 << 20, device, NULL));  // to its own default stream
    return NULL;
}

// One thread captures a stream for which the legacy default stream would wait; another uses its own default stream.
static int capture_beside_default(void) {
    pthread_t other;
    CUstream stream;
    CUgraph graph;
    CUdeviceptr managed;
    MUST(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    pthread_create(&other, NULL, prefetch_meanwhile, &managed);
    pthread_join(other, NULL);
    MUST(launch(1000, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    return 0;
}

static pthread_barrier_t together;

static void* take_little(void* unused) {
    CUdeviceptr p;
    MUST(cuCtxSetCurrent(context));
    pthread_barrier_wait(&together);
    CUresult r = cuMemAlloc(&p, 1000);
    return (void*)(intptr_t)r;
}

// Prints how many of a hundred threads are refused 1000 bytes each, which have room in one block together.
static void little_at_once(void) {
    enum { kThreads = 100 };
    pthread_t threads[kThreads];
    int refused = 0;
    pthread_barrier_init(&together, NULL, kThreads);
    for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, take_little, NULL);
    for (int i = 0; i < kThreads; ++i) {
        void* r;
        pthread_join(threads[i], &r);
        refused += r != NULL;
    }
    printf("%d\n", refused);
}

// Plain memory is freed behind a kernel, and as much is asked for meanwhile and afterwards. Prints what it got.
static void free_behind_work(void) {
    enum { kBytes = 600 << 20 };
    CUstream stream;
    CUdeviceptr first, second;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&first, kBytes));
    MUST(launch(500000000, stream));
    MUST(cuMemFreeAsync(first, stream));
    const CUresult meanwhile = cuMemAlloc(&second, kBytes);
    MUST(cuStreamSynchronize(stream));
    printf("%d %d\n", (int)meanwhile, (int)cuMemAlloc(&second, kBytes));
}

static void say(const char* line) {
    puts(line);
    fflush(stdout);
}

// --- memory, by every API ------------------------------------------------------------------------------------------

enum { kPlain, kPitch, kManaged, kAsync, kArray, kArray3D, kMipmap, kCreate, kSmall, kKinds };
typedef struct {
    int kind;
    uint64_t handle, address, bytes;
} Piece;

static CUresult take(Piece* p, int kind, uint64_t bytes, CUstream stream) {
    *p = (Piece){.kind = kind, .bytes = bytes};
    size_t pitch;
    switch (kind) {
        case kPlain:
        case kSmall:
            return cuMemAlloc((CUdeviceptr*)&p->address, kind == kSmall ? 1 + bytes % 900000 : bytes);
        case kPitch:
            return cuMemAllocPitch((CUdeviceptr*)&p->address, &pitch, 8192, bytes / 8192, 4);
        case kManaged:
            return cuMemAllocManaged((CUdeviceptr*)&p->address, bytes, CU_MEM_ATTACH_GLOBAL);
        case kAsync:
            return cuMemAllocAsync((CUdeviceptr*)&p->address, bytes, stream);
        case kArray: {
            CUDA_ARRAY_DESCRIPTOR a = {1024, bytes / 4096, CU_AD_FORMAT_FLOAT, 1};
            return cuArrayCreate((CUarray*)&p->handle, &a);
        }
        case kArray3D: {
            CUDA_ARRAY3D_DESCRIPTOR a = {256, 256, bytes / 262144, CU_AD_FORMAT_FLOAT, 1, 0};
            return cuArray3DCreate((CUarray*)&p->handle, &a);
        }
        case kMipmap: {
            CUDA_ARRAY3D_DESCRIPTOR a = {1024, bytes / 4096, 0, CU_AD_FORMAT_FLOAT, 1, 0};
            return cuMipmappedArrayCreate((CUmipmappedArray*)&p->handle, &a, 3);
        }
        default: {
            CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
            uint64_t whole = (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20);
            p->bytes = whole;
            return cuMemCreate((CUmemGenericAllocationHandle*)&p->handle, whole, &property, 0);
        }
    }
}

static void drop(const Piece* p, CUstream stream) {
    switch (p->kind) {
        case kAsync:
            MUST(cuMemFreeAsync(p->address, stream));
            MUST(cuStreamSynchronize(stream));
            return;
        case kArray:
        case kArray3D:
            MUST(cuArrayDestroy((CUarray)p->handle));
            return;
        case kMipmap:
            MUST(cuMipmappedArrayDestroy((CUmipmappedArray)p->handle));
            return;
        case kCreate:
            MUST(cuMemRelease(p->handle));
            return;
        default:
            MUST(cuMemFree(p->address));
    }
}

static int hoard(double seconds, unsigned seed, int exact) {
    start();
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    static Piece held[256];
    say("ready");
    while (getchar() != '\n') {
    }
    int count = 0, taken = 0, refused = 0;
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        if (count < 256 && rand_r(&seed) % 3) {
            int kind = rand_r(&seed) % kKinds;
            // The simulated driver rounds each level by itself, which no driver does.
            if (kind == kMipmap) kind = kArray;
            if (exact && (kind == kAsync || kind == kSmall || kind == kArray)) kind = kPlain;
            CUresult r = take(&held[count], kind, ((uint64_t)1 + rand_r(&seed) % 60) << 20, stream);
            if (r == CUDA_SUCCESS)
                ++count, ++taken;
            else if (r == CUDA_ERROR_OUT_OF_MEMORY)
                ++refused;
            else if (r != CUDA_ERROR_NOT_SUPPORTED)
                MUST(r);
        } else if (count) {
            int i = rand_r(&seed) % (unsigned)count;
            drop(&held[i], stream);
            held[i] = held[--count];
        }
    }
    while (count) drop(&held[--count], stream);
    CUmemoryPool pool;
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    MUST(cuMemPoolTrimTo(pool, 0));
    size_t free_bytes, total;
    MUST(cuMemGetInfo(&free_bytes, &total));
    printf("%d %d %zu %zu\n", taken, refused, free_bytes, total);
    say("empty");
    getchar();
    return 0;
}

// A pool half of which is free, and no large piece of it; then large ones, as many as it gets. Says how many.
static int from_fragments(void) {
    enum { kPieces = 128, kPiece = 8 << 20, kLarge = 12 << 20 };
    CUmemoryPool pool;
    cuuint64_t keep = UINT64_MAX;
    CUdeviceptr pieces[kPieces], large;
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    for (int i = 0; i < kPieces; ++i) MUST(cuMemAllocAsync(&pieces[i], kPiece, NULL));
    for (int i = 0; i < kPieces; i += 2) MUST(cuMemFreeAsync(pieces[i], NULL));
    MUST(cuCtxSynchronize());
    int taken = 0;
    while (taken < 100 && cuMemAllocAsync(&large, kLarge, NULL) == CUDA_SUCCESS) ++taken;
    printf("%d\n", taken);
    return 0;
}

// All that it gets on the other device: from its pool, by a stream of this one, then as plain memory. Says how much
// from the pool, how much of that this device says it has, and how much in all, in MiB.
static int from_elsewhere(void) {
    const size_t piece = 64 << 20;
    CUcontext there;
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr p;
    size_t before, after, total;
    int from_pool = 0, plain = 0;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuDevicePrimaryCtxRetain(&there, 1));
    MUST(cuDeviceGetDefaultMemPool(&pool, 1));
    MUST(cuMemGetInfo(&before, &total));
    while (from_pool < 512 && cuMemAllocFromPoolAsync(&p, piece, pool, stream) == CUDA_SUCCESS) from_pool += 64;
    MUST(cuMemGetInfo(&after, &total));
    MUST(cuCtxSetCurrent(there));
    while (plain < 8192 && cuMemAlloc(&p, piece) == CUDA_SUCCESS) plain += 64;
    printf("%d %d %d\n", from_pool, (int)((before - after) >> 20), from_pool + plain);
    return 0;
}

// Eight threads at once take the same room: that which the pool has, or the graphs' memory. Says how many got some,
// at most and at least over many rounds.
enum { kTogether = 8 };
static const size_t kRoom = 512 << 20;
static CUgraphExec graphs[kTogether];
static CUdeviceptr taken[kTogether];

static CUstream own_stream(void) {
    CUstream stream;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&together);
    return stream;
}

static void* take_from_pool(void* place) {
    CUstream stream = own_stream();
    const CUresult result = cuMemAllocAsync((CUdeviceptr*)place, kRoom, stream);
    MUST(cuStreamDestroy(stream));
    return result == CUDA_SUCCESS ? place : NULL;
}

// Behind a gate: none ends before all have been launched.
static void* launch_graph(void* place) {
    CUstream stream = own_stream();
    MUST(cuLaunchHostFunc(stream, wait_for_gate, NULL));
    const CUresult result = cuGraphLaunch(*(CUgraphExec*)place, stream);
    return result == CUDA_SUCCESS ? place : NULL;
}

static CUgraphExec graph_with_memory(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS p = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}},
        .bytesize = kRoom};
    CUgraph graph;
    CUgraphNode made, freed;
    CUgraphExec exec;
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemAllocNode(&made, graph, NULL, 0, &p));
    MUST(cuGraphAddMemFreeNode(&freed, graph, &made, 1, p.dptr));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    return exec;
}

static int take_together(int rounds, int of_graphs) {
    CUmemoryPool pool;
    cuuint64_t keep = UINT64_MAX;
    int most = 0, least = kTogether;
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    pthread_barrier_init(&together, NULL, kTogether);
    for (int round = 0; round < rounds; ++round) {
        open_gate = 0;
        if (!of_graphs) MUST(cuMemAllocAsync(&taken[0], kRoom, NULL));
        if (!of_graphs) MUST(cuMemFreeAsync(taken[0], NULL));
        MUST(cuCtxSynchronize());
        pthread_t threads[kTogether];
        void* got[kTogether];
        for (int i = 0; i < kTogether; ++i) {
            if (of_graphs) graphs[i] = graph_with_memory();
            pthread_create(&threads[i], NULL, of_graphs ? launch_graph : take_from_pool,
                           of_graphs ? (void*)&graphs[i] : (void*)&taken[i]);
        }
        int count = 0;
        for (int i = 0; i < kTogether; ++i) {
            pthread_join(threads[i], &got[i]);
            count += got[i] != NULL;
        }
        open_gate = 1;
        most = count > most ? count : most;
        least = count < least ? count : least;
        for (int i = 0; i < kTogether; ++i) {
            if (of_graphs)
                MUST(cuGraphExecDestroy(graphs[i]));
            else if (got[i])
                MUST(cuMemFreeAsync(taken[i], NULL));
        }
        MUST(cuCtxSynchronize());
        if (!of_graphs) MUST(cuMemPoolTrimTo(pool, 0));
    }
    printf("%d %d\n", least, most);
    return 0;
}

// Graphs share memory where they do not run at the same time. Prints how many were launched one after another on one
// stream, then each on another stream when the one before had ended, then all at once.
static int graphs_by_turns(void) {
    CUstream streams[kTogether];
    int counts[3] = {0};
    for (int i = 0; i < kTogether; ++i) {
        graphs[i] = graph_with_memory();
        MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    MUST(cuLaunchHostFunc(streams[0], wait_for_gate, NULL));
    for (int i = 0; i < kTogether; ++i) counts[0] += cuGraphLaunch(graphs[i], streams[0]) == CUDA_SUCCESS;
    open_gate = 1;
    for (int i = 0; i < kTogether; ++i) {
        MUST(cuCtxSynchronize());
        counts[1] += cuGraphLaunch(graphs[i], streams[i]) == CUDA_SUCCESS;
    }
    MUST(cuCtxSynchronize());
    open_gate = 0;
    for (int i = 0; i < kTogether; ++i) {
        MUST(cuLaunchHostFunc(streams[i], wait_for_gate, NULL));
        counts[2] += cuGraphLaunch(graphs[i], streams[i]) == CUDA_SUCCESS;
    }
    open_gate = 1;
    MUST(cuCtxSynchronize());
    printf("%d %d %d\n", counts[0], counts[1], counts[2]);
    return 0;
}

// Largest use of the device, as NVML counts it, above what it was in the beginning. Runs without the hook.
static int sample_memory(void) {
    struct {
        unsigned long long total, free, used;
    } memory;
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return 5;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*find)(unsigned, void**) = (int (*)(unsigned, void**))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    int (*ask)(void*, void*) = (int (*)(void*, void*))dlsym(library, "nvmlDeviceGetMemoryInfo");
    void* handle;
    if (init() || find(0, &handle) || ask(handle, &memory)) return 6;
    unsigned long long base = memory.used, most = 0;
    say("ready");
    fcntl(0, F_SETFL, O_NONBLOCK);
    char c;
    while (read(0, &c, 1) < 0) {  // until the test closes the pipe
        ask(handle, &memory);
        if (memory.used - base > most) most = memory.used - base;
        usleep(50);
    }
    ask(handle, &memory);
    printf("%llu %llu\n", most, memory.used - base);
    return 0;
}

// --- the ends and beginnings of processes --------------------------------------------------------------------------

static void* launch_forever(void* unused) {
    MUST(cuCtxSetCurrent(context));
    while (launch(1000000, NULL) == CUDA_SUCCESS) did_one();
    return NULL;
}

static void launch_at_exit(void) {
    for (int i = 0; i < 20; ++i) launch(100000, NULL);
}

// Runs after the driver's own handler: what still calls the driver then is seen.
static void linger(void) {
    CUresult r = cuCtxSynchronize();
    if (r != CUDA_ERROR_DEINITIALIZED) {
        fprintf(stderr, "the driver that was torn down answers %d\n", (int)r);
        _exit(5);
    }
    usleep(30000);
}

static void* launch_some(void* unused) {
    MUST(cuCtxSetCurrent(context));
    CUstream own;
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 300; ++i) MUST(launch(20000 + (uint64_t)(i % 7) * 30000, own));
    return NULL;
}

static void* end_program(void* unused) {
    exit(0);
}

static void use_another_context(void) {
    CUcontext another;
    MUST(cuCtxCreate(&another, NULL, 0, device));
    CUmodule module;
    MUST(cuModuleLoadData(&module, kImage));
    MUST(cuModuleGetFunction(&spin, module, "spin"));
    for (int i = 0; i < 20; ++i) MUST(launch(100000, NULL));
    MUST(cuCtxDestroy(another));
}

// Ends with much in its queues.
static int leave_queued(const char* how) {
    atexit(linger);
    start();
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, launch_some, NULL);
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    if (!strcmp(how, "contexts")) atexit(use_another_context);
    if (!strcmp(how, "fork")) {
        pid_t child = fork();
        if (child == 0) exit(0);  // runs the handlers of its parent, whose driver it has not
        int status = 0;
        const uint64_t begin = now_ns();
        waitpid(child, &status, 0);
        if (status != 5 << 8 || now_ns() - begin > 1000000000) return 6;  // as linger() finds: no driver at all
    }
    if (!strcmp(how, "thread")) {
        pthread_create(&threads[0], NULL, end_program, NULL);
        for (;;) cuCtxSynchronize();
    }
    exit(0);
}

static pthread_t workers[4];
static int at_work;

static void* launch_until_refused(void* unused) {
    MUST(cuCtxSetCurrent(context));
    __atomic_fetch_add(&at_work, 1, __ATOMIC_RELAXED);
    CUresult r;
    while ((r = launch(1000000, NULL)) == CUDA_SUCCESS) did_one();
    if (r != CUDA_ERROR_DEINITIALIZED) _exit(9);
    return NULL;
}

static void join_workers(void) {
    for (int i = 0; i < 4; ++i) pthread_join(workers[i], NULL);
}

// As a pool of threads does that is there before the driver is, and so goes after it.
static int join_late(double seconds) {
    atexit(join_workers);
    start();
    for (int i = 0; i < 4; ++i) pthread_create(&workers[i], NULL, launch_until_refused, NULL);
    while (__atomic_load_n(&at_work, __ATOMIC_RELAXED) < 4) usleep(1000);
    usleep((unsigned)(seconds * 1e6));
    exit(0);
}

// The driver's own function, past whatever was preloaded: as older runtimes find some in tables of the driver's.
static void* past_the_hook(const char* name) {
    struct link_map* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const ElfW(Sym)* symbols = NULL;
    const char* names = NULL;
    for (const ElfW(Dyn)* d = driver ? driver->l_ld : NULL; d && d->d_tag != DT_NULL; ++d) {
        if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym)*)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB) names = (const char*)d->d_un.d_ptr;
    }
    for (const ElfW(Sym)* s = symbols; s && (const char*)s < names; ++s)  // the names come behind
        if (s->st_value && !strcmp(names + s->st_name, name)) return (char*)driver->l_addr + s->st_value;
    return NULL;
}

static CUgreenCtx make_green(void) {
    CUdevResource all, part;
    CUdevResourceDesc description;
    CUgreenCtx green;
    unsigned groups = 1;
    MUST(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 16));
    MUST(cuDevResourceGenerateDesc(&description, &part, 1));
    MUST(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

// Contexts end with thousands of frees that are not complete, so that the hook is at them most of the time.
static int end_contexts_with_frees(void) {
    enum { kFrees = 400 };
    static CUdeviceptr freed[kFrees];
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    for (int round = 0; round < 300; ++round) {
        CUstream stream;
        CUmodule module;
        MUST(cuCtxCreate(&context, NULL, 0, device));
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cuModuleLoadData(&module, kImage));
        MUST(cuModuleGetFunction(&spin, module, "spin"));
        for (int i = 0; i < kFrees; ++i) MUST(cuMemAlloc(&freed[i], 1000));
        MUST(launch(4000000, stream));
        for (int i = 0; i < kFrees; ++i) MUST(cuMemFreeAsync(freed[i], stream));
        MUST(cuCtxDestroy(context));
    }
    return 0;
}

// Contexts end: their streams with work in them, or gone before. Some did not begin by a call that the hook sees.
static int end_contexts(const char* how) {
    if (!strcmp(how, "frees")) return end_contexts_with_frees();
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    const int is_green = !strcmp(how, "green");
    CUresult (*retain)(CUcontext*, CUdevice) = past_the_hook("cuDevicePrimaryCtxRetain");
    for (int round = 0; round < 5; ++round) {
        CUgreenCtx green = is_green ? make_green() : NULL;
        CUstream stream;
        CUmodule module;
        if (is_green)
            MUST(cuCtxFromGreenCtx(&context, green));
        else if (!strcmp(how, "streams"))
            MUST(cuCtxCreate(&context, NULL, 0, device));
        else
            MUST(retain(&context, device));
        MUST(cuCtxSetCurrent(context));
        MUST(cuModuleLoadData(&module, kImage));
        MUST(cuModuleGetFunction(&spin, module, "spin"));
        if (is_green)
            MUST(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
        else
            MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        for (int i = 0; i < 30; ++i) MUST(launch(1000000, stream));
        if (is_green) MUST(cuGreenCtxDestroy(green));
        if (!strcmp(how, "streams")) {
            MUST(cuStreamDestroy(stream));
            MUST(cuCtxDestroy(context));
        }
        if (!strcmp(how, "reset")) MUST(cuDevicePrimaryCtxReset(device));
        if (!strcmp(how, "release")) MUST(cuDevicePrimaryCtxRelease(device));
        usleep(50000);
    }
    return 0;
}

static int fork_after(double seconds) {
    start();
    work_for(0.1);
    pid_t child = fork();
    if (child == 0) {
        // CUDA does not work in a forked child; asking must not hang, and leaving must not disturb the parent.
        CUdeviceptr p;
        CUresult r = cuMemAlloc(&p, 1 << 20);
        CUresult l = launch(1000, NULL);
        fprintf(stderr, "child %d %d\n", (int)r, (int)l);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status) return 7;
    child = fork();
    if (child == 0) {
        sleep(30);
        _exit(0);
    }
    work_for(seconds);
    printf("%d\n", (int)child);
    fflush(stdout);
    return 0;
}

static int fork_before(double seconds) {
    for (int i = 0; i < 3; ++i)
        if (fork() == 0) {
            start();
            work_for(seconds);
            _exit(0);
        }
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    return bad ? 8 : 0;
}

static int close_all(double seconds) {
    start();
    work_for(0.2);
    for (int fd = 3; fd < 4096; ++fd) close(fd);
    work_for(0.2);  // the numbers name nothing
    int mine[64][2];
    for (int i = 0; i < 64; ++i)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, mine[i]) != 0) return 9;
    for (int i = 0; i < 64; ++i)  // ... also under the number the hook had
        if (mine[i][0] < 600) dup2(mine[i][0], 500 + i);
    work_for(seconds);
    char data[2048];
    for (int i = 0; i < 64; ++i)
        if (recv(mine[i][1], data, sizeof data, MSG_DONTWAIT) >= 0) return 10;
    return 0;
}

// --- threads
// ---------------------------------------------------------------------------------------------------------

static double thread_seconds;
static int no_captures;

static void* streams_thread(void* number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    MUST(cuCtxSetCurrent(context));
    for (uint64_t end = now_ns() + (uint64_t)(thread_seconds * 1e9); now_ns() < end;) {
        CUstream stream;
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CUdeviceptr words = 0;
        MUST(cuMemAlloc(&words, (size_t)(1 + rand_r(&seed) % 5) << 20));
        for (int i = 0; i < 20; ++i) MUST(launch(1000 + rand_r(&seed) % 100000, stream));
        if (!no_captures && rand_r(&seed) % 2) {
            CUgraph graph;
            CUgraphExec run;
            MUST(cuStreamSynchronize(stream));
            MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
            for (int i = 0; i < 5; ++i) MUST(launch(5000, stream));
            MUST(cuStreamEndCapture(stream, &graph));
            MUST(cuGraphInstantiate(&run, graph, 0));
            for (int i = 0; i < 3; ++i) MUST(cuGraphLaunch(run, stream));
            MUST(cuStreamSynchronize(stream));
            MUST(cuGraphExecDestroy(run));
            MUST(cuGraphDestroy(graph));
        }
        MUST(launch(2000, CU_STREAM_PER_THREAD));
        if (rand_r(&seed) % 2) MUST(cuStreamSynchronize(stream));
        MUST(cuStreamDestroy(stream));
        MUST(cuMemFree(words));
        __atomic_fetch_add(&progress[0], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

// The primary context in half of the threads, one of its own in the others.
static void* make_context(void* number) {
    CUcontext made;
    const uintptr_t n = (uintptr_t)number;
    return (void*)(uintptr_t)(n % 2 ? cuCtxCreate(&made, NULL, 0, device) : cuDevicePrimaryCtxRetain(&made, device));
}

static int make_contexts(int count) {  // says how many threads had one, and stays
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    pthread_t all[64];
    for (int i = 0; i < count; ++i) pthread_create(&all[i], NULL, make_context, (void*)(uintptr_t)i);
    int made = 0;
    for (int i = 0; i < count; ++i) {
        void* result;
        pthread_join(all[i], &result);
        made += result == NULL;
    }
    printf("%d\n", made);
    fflush(stdout);
    getchar();
    return 0;
}

static int threads(double seconds) {
    static uint64_t here[2];
    if (!progress) progress = here;
    thread_seconds = seconds;
    start();
    pthread_t all[8];
    for (uintptr_t i = 0; i < 8; ++i) pthread_create(&all[i], NULL, streams_thread, (void*)(i + 1));
    for (int i = 0; i < 8; ++i) pthread_join(all[i], NULL);
    MUST(cuCtxSynchronize());
    size_t free_bytes, total;
    MUST(cuMemGetInfo(&free_bytes, &total));
    printf("%llu %zu\n", (unsigned long long)progress[0], free_bytes);
    return 0;
}

// Captures that last for many looks of the hook, with work launched before and during each.
static int capture_slowly(double seconds) {
    start();
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        CUgraph graph;
        MUST(launch(1000, stream));
        MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (int i = 0; i < 5; ++i) {
            MUST(launch(1000, stream));
            usleep(2000);
        }
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphDestroy(graph));
    }
    return 0;
}

// --- wrong calls
// -----------------------------------------------------------------------------------------------------

static int wrong(void) {
    start();
    size_t before, after, total, pitch;
    CUdeviceptr p = 0, q = 0;
    MUST(cuMemGetInfo(&before, &total));
    int bad = 0;
    bad += cuMemAlloc(&q, UINT64_MAX - 4) == CUDA_SUCCESS;
    bad += cuMemAlloc(&q, UINT64_MAX) == CUDA_SUCCESS;
    bad += cuMemAlloc(&q, (size_t)1 << 56) == CUDA_SUCCESS;
    bad += cuMemAlloc(&q, 0) == CUDA_SUCCESS;
    bad += cuMemAllocManaged(&q, UINT64_MAX - 4, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS;
    bad += cuMemAllocPitch(&q, &pitch, UINT64_MAX - 4, 3, 4) == CUDA_SUCCESS;
    bad += cuMemAllocPitch(&q, &pitch, UINT64_MAX / 3, 4, 4) == CUDA_SUCCESS;
    bad += cuMemAllocAsync(&q, UINT64_MAX - 4, NULL) == CUDA_SUCCESS;
    MUST(cuMemAlloc(&p, 64 << 20));
    MUST(cuMemFree(p));
    for (int i = 0; i < 100; ++i) bad += cuMemFree(p) == CUDA_SUCCESS;  // over-free
    bad += cuMemFree(p + 4096) == CUDA_SUCCESS;
    bad += cuMemFree(0x1234) == CUDA_SUCCESS;
    MUST(cuMemGetInfo(&after, &total));
    printf("%d %zu %zu %zu\n", bad, before, after, total);
    return 0;
}

// A MiB count a line: allocates and says what came of it, cuMemGetInfo too.
static void* grow(void* unused) {
    MUST(cuCtxSetCurrent(context));
    for (unsigned mib; scanf("%u", &mib) == 1;) {
        size_t free_bytes, total;
        CUdeviceptr p;
        CUresult r = mib ? cuMemAlloc(&p, (size_t)mib << 20) : CUDA_SUCCESS;
        MUST(cuMemGetInfo(&free_bytes, &total));
        printf("%d %zu %zu\n", (int)r, free_bytes, total);
        fflush(stdout);
    }
    return unused;
}

int main(int argc, char** argv) {
    const char* mode = argc > 1 ? argv[1] : "";
    double seconds = argc > 2 ? atof(argv[2]) : 1;
    if (getenv("PROGRESS")) show_progress(getenv("PROGRESS"));
    no_captures = getenv("NO_CAPTURES") != NULL;
    if (!strcmp(mode, "sample")) return sample_memory();
    if (!strcmp(mode, "fork-before")) return fork_before(seconds);
    if (!strcmp(mode, "fork-after")) return fork_after(seconds);
    if (!strcmp(mode, "leave-queued")) return leave_queued(argc > 3 ? argv[3] : "");
    if (!strcmp(mode, "join-late")) return join_late(seconds);
    if (!strcmp(mode, "end-contexts")) return end_contexts(argv[3]);
    if (!strcmp(mode, "close-all")) return close_all(seconds);
    if (!strcmp(mode, "contexts")) return make_contexts((int)seconds);
    if (!strcmp(mode, "threads")) return threads(seconds);
    if (!strcmp(mode, "capture-slowly")) return capture_slowly(seconds);
    if (!strcmp(mode, "hoard")) return hoard(seconds, argc > 3 ? (unsigned)atoi(argv[3]) : 1, argc > 4);
    if (!strcmp(mode, "wrong")) return wrong();
    if (!strcmp(mode, "launch-one")) {
        MUST(cuInit(0));
        start();
        CUresult r = launch(1000, NULL);
        printf("%d\n", (int)r);
        return 0;
    }
    start();
    if (!strcmp(mode, "uuid")) {
        CUuuid uuid;
        MUST(cuDeviceGetUuid(&uuid, device));
        for (int i = 0; i < 16; ++i) printf("%02x", (unsigned char)uuid.bytes[i]);
        return 0;
    }
    CUdeviceptr held = 0;
    uint64_t bytes = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0;
    if (bytes && cuMemAlloc(&held, bytes) != CUDA_SUCCESS) return 11;
    say("ready");
    if (!strcmp(mode, "fragments")) return from_fragments();
    if (!strcmp(mode, "elsewhere")) return from_elsewhere();
    if (!strcmp(mode, "pool-at-once")) return take_together(200, 0);
    if (!strcmp(mode, "graphs-at-once")) return take_together(5, 1);
    if (!strcmp(mode, "graphs-by-turns")) return graphs_by_turns();
    if (!strcmp(mode, "little-at-once")) {
        little_at_once();
        return 0;
    }
    if (!strcmp(mode, "free-behind-work")) {
        free_behind_work();
        return 0;
    }
    if (!strcmp(mode, "beside-full-queue"))
        return !strcmp(argv[4], "context") ? beside_end_of_context(argv[5]) : beside_full_queue(argv[4], argv[5]);
    if (!strcmp(mode, "capture-beside")) return capture_beside();
    if (!strcmp(mode, "capture-beside-default")) return capture_beside_default();
    if (!strcmp(mode, "insist")) return insist((int)seconds);
    if (!strcmp(mode, "work")) work_for(seconds);
    if (!strcmp(mode, "host-bound")) host_bound(seconds);
    if (!strcmp(mode, "copy-back")) copy_back(seconds);
    if (!strcmp(mode, "flood")) flood(seconds);
    if (!strcmp(mode, "poll-streams")) poll_for(seconds, 0);
    if (!strcmp(mode, "poll-events")) poll_for(seconds, 1);
    if (!strcmp(mode, "ask-wrongly")) ask_wrongly();
    if (!strcmp(mode, "come-and-go")) come_and_go(seconds);
    if (!strcmp(mode, "gates")) work_behind_gates(seconds);
    if (!strcmp(mode, "wait")) getchar();
    if (!strcmp(mode, "exit-holding")) {
        for (int i = 0; i < 100; ++i) MUST(launch(100000, NULL));
        return 0;
    }
    if (!strcmp(mode, "quick-exit")) {
        for (int i = 0; i < 100; ++i) MUST(launch(100000, NULL));
        _exit(0);
    }
    if (!strcmp(mode, "exit-while-launching")) {
        pthread_t t[4];
        for (int i = 0; i < 4; ++i) pthread_create(&t[i], NULL, launch_forever, NULL);
        usleep((unsigned)(seconds * 1e6));
        exit(0);
    }
    if (!strcmp(mode, "launch-at-exit")) {
        atexit(launch_at_exit);
        work_for(seconds);
        return 0;
    }
    if (!strcmp(mode, "exec")) {
        work_for(seconds);
        execl("/bin/sleep", "sleep", "30", (char*)NULL);
    }
    if (!strcmp(mode, "grow")) grow(NULL);
    if (!strcmp(mode, "outlive")) {  // the first thread ends, and another one goes on
        pthread_t other;
        pthread_create(&other, NULL, grow, NULL);
        pthread_exit(NULL);
    }
    return 0;
}
