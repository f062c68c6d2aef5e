// Device memory as the real driver hands it out: blocks of 2 MiB, slabs for what is smaller than 1 MiB, pools that
// grow by 32 MiB and shrink when they like, physical memory that outlives its handle while it is mapped.
#define __CUDA_API_VERSION_INTERNAL
#include "fake_memory.h"

#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { kMaximum = 1 << 16 };
static const uint64_t kMiB = 1 << 20, kBlock = 2 << 20;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_address = 0x700000000000, graph_memory;
static const char* failing;
static int contexts_made, capturing, reads_while_capturing;
static int initial;
static CUcontext current = (CUcontext)&initial;
static __thread CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct item {
    uint64_t address, bytes;  // bytes as asked for
    uint64_t held;            // as taken; of slabs and pools: 0
    CUcontext context;
    struct pool* pool;
    struct slab* slab;
};
struct slab {
    uint64_t address, filled;
    int live;
};
struct pool {
    uint64_t reserved, used;
    int destroyed, live, of_host;
};
struct physical {
    uint64_t bytes;
    int references;
};
struct mapping {
    uint64_t address, bytes;
    struct physical* physical;
};
static struct item items[kMaximum];
static struct mapping mappings[64];
static struct slab* open_slab;
static struct pool default_pool, host_pool = {.of_host = 1}, *pools[16] = {&default_pool, &host_pool};
static uint64_t slab_bytes, physical_bytes;
static const uint64_t kShared = 64 << 20, kSharedAddress = 0x600000000000;  // of another process
static int opens;
static pthread_barrier_t* openers;

static uint64_t up(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static int fails(const char* function) {
    count(function);
    if (!failing || strcmp(failing, function) != 0) return 0;
    failing = NULL;
    return 1;
}
#define ENTER(name)                   \
    pthread_mutex_lock(&mutex);       \
    if (fails(#name)) {               \
        pthread_mutex_unlock(&mutex); \
        return CUDA_ERROR_UNKNOWN;    \
    }
#define LEAVE(result)                 \
    do {                              \
        CUresult r_ = result;         \
        pthread_mutex_unlock(&mutex); \
        return r_;                    \
    } while (0)

void fake_fail_next(const char* function) {
    failing = function;
}
void fake_set_graph_memory(uint64_t bytes) {
    graph_memory = bytes;
}
int fake_pool_reads_while_capturing(void) {
    return reads_while_capturing;
}

uint64_t fake_held(void) {
    pthread_mutex_lock(&mutex);
    uint64_t held = slab_bytes + physical_bytes + graph_memory + (opens ? kShared : 0);
    for (int i = 0; i < kMaximum; ++i) held += items[i].held;
    for (int i = 0; i < 16; ++i) held += pools[i] && !pools[i]->of_host ? pools[i]->reserved : 0;
    pthread_mutex_unlock(&mutex);
    return held;
}

static struct item* find(uint64_t address) {
    static int hint;
    for (int i = 0; i < kMaximum; ++i) {
        int at = (hint + i) % kMaximum;
        if (items[at].address == address) return hint = at, &items[at];
    }
    return NULL;
}

static uint64_t addresses(uint64_t bytes) {
    uint64_t address = next_address;
    next_address += up(bytes ? bytes : 1, kBlock);
    return address;
}

static CUresult take(CUdeviceptr* pointer, uint64_t bytes) {
    struct item* item = find(0);
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0 || !pointer || !item) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (uint64_t)1 << 40) return CUDA_ERROR_OUT_OF_MEMORY;
    *item = (struct item){.bytes = bytes, .context = current};
    if (bytes >= kMiB) {
        item->held = up(bytes, kBlock);
        item->address = addresses(bytes);
    } else {
        uint64_t size = up(bytes, 512);
        if (!open_slab || open_slab->filled + size > kBlock) {
            open_slab = calloc(1, sizeof *open_slab);
            open_slab->address = addresses(kBlock);
            slab_bytes += kBlock;
        }
        item->slab = open_slab;
        item->address = open_slab->address + open_slab->filled;
        open_slab->filled += size;
        ++open_slab->live;
    }
    *pointer = item->address;
    return CUDA_SUCCESS;
}

static void leave_pool(struct item* item) {
    item->pool->used -= item->bytes;
    if (--item->pool->live == 0 && item->pool->destroyed) item->pool->reserved = 0;
}

static CUresult drop(uint64_t address) {
    struct item* item = address ? find(address) : NULL;
    if (!item) return CUDA_ERROR_INVALID_VALUE;
    if (item->pool) leave_pool(item);
    if (item->slab && --item->slab->live == 0) {
        if (open_slab == item->slab) open_slab = NULL;
        free(item->slab);
        slab_bytes -= kBlock;
    }
    memset(item, 0, sizeof *item);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
    ENTER(cuMemAlloc_v2)
    LEAVE(take(p, n));
}
CUresult cuMemAllocManaged(CUdeviceptr* p, size_t n, unsigned flags) {
    ENTER(cuMemAllocManaged)
    LEAVE(take(p, n));
}
CUresult cuMemAllocPitch_v2(CUdeviceptr* p, size_t* pitch, size_t width, size_t height, unsigned element) {
    ENTER(cuMemAllocPitch_v2)
    *pitch = up(width, 1024);  // more than the hook expects
    LEAVE(take(p, *pitch * height));
}
CUresult cuMemFree_v2(CUdeviceptr p) {
    ENTER(cuMemFree_v2)
    LEAVE(drop(p));
}
CUresult cuMemGetInfo_v2(size_t* available, size_t* total) {
    if (available) *available = ((uint64_t)80 << 30) - fake_held();
    if (total) *total = (uint64_t)80 << 30;
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* total, CUdevice d) {
    *total = (uint64_t)80 << 30;
    return CUDA_SUCCESS;
}

// --- pools
// -----------------------------------------------------------------------------------------------------------

static CUresult take_pooled(CUdeviceptr* pointer, uint64_t bytes, struct pool* pool) {
    struct item* item = find(0);
    if (bytes == 0 || !item) return CUDA_ERROR_INVALID_VALUE;
    if (pool->used + bytes > pool->reserved) pool->reserved += up(pool->used + bytes - pool->reserved, 32 * kMiB);
    pool->used += bytes;
    ++pool->live;
    *item = (struct item){.address = addresses(bytes), .bytes = bytes, .pool = pool};
    *pointer = item->address;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* p, size_t n, CUstream s) {
    ENTER(cuMemAllocAsync)
    if (s && capturing) LEAVE(CUDA_SUCCESS);  // a graph node: no memory
    LEAVE(take_pooled(p, n, &default_pool));
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* p, size_t n, CUstream s) {
    return cuMemAllocAsync(p, n, s);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* p, size_t n, CUmemoryPool pool, CUstream s) {
    ENTER(cuMemAllocFromPoolAsync)
    LEAVE(take_pooled(p, n, (struct pool*)pool));
}
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) {
    ENTER(cuMemFreeAsync)
    LEAVE(drop(p));
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice d) {
    *pool = (CUmemoryPool)&default_pool;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    ENTER(cuMemPoolCreate)
    int i = 0;
    while (pools[i]) ++i;
    pools[i] = calloc(1, sizeof **pools);
    pools[i]->of_host = properties->location.type == CU_MEM_LOCATION_TYPE_HOST;
    *pool = (CUmemoryPool)pools[i];
    LEAVE(CUDA_SUCCESS);
}
#ifndef FAKE_OLD
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
    *pool = (CUmemoryPool)(location->type == CU_MEM_LOCATION_TYPE_HOST ? &host_pool : &default_pool);
    return CUDA_SUCCESS;
}
#endif
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    ENTER(cuMemPoolDestroy)
    struct pool* pool = (struct pool*)handle;
    pool->destroyed = 1;
    pool->reserved = pool->used;
    LEAVE(CUDA_SUCCESS);
}
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    ENTER(cuMemPoolTrimTo)
    struct pool* pool = (struct pool*)handle;
    uint64_t least = up(pool->used > keep ? pool->used : keep, 32 * kMiB);
    if (least < pool->reserved) pool->reserved = least;
    LEAVE(CUDA_SUCCESS);
}
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    struct pool* pool = (struct pool*)handle;
    pthread_mutex_lock(&mutex);
    if (capturing && mode != CU_STREAM_CAPTURE_MODE_RELAXED) ++reads_while_capturing;
    CUresult result = pool->destroyed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    *(cuuint64_t*)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved : pool->used;
    LEAVE(result);
}
void fake_shrink_pools(void) {
    for (int i = 0; i < 16; ++i)
        if (pools[i]) pools[i]->reserved = up(pools[i]->used, 32 * kMiB);
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice d, CUgraphMem_attribute attribute, void* value) {
    *(cuuint64_t*)value = graph_memory;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGraphMemTrim(CUdevice d) {
    graph_memory = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode m) {
    capturing = 1;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph* graph) {
    capturing = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* status) {
    *status = s && capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* exchanged) {
    CUstreamCaptureMode before = mode;
    mode = *exchanged;
    *exchanged = before;
    return CUDA_SUCCESS;
}

// --- memory of another process
// ---------------------------------------------------------------------------------------

void fake_openers_meet(int threads) {
    static pthread_barrier_t meeting;
    pthread_barrier_init(&meeting, NULL, (unsigned)threads);
    openers = &meeting;
}
// A handle that is opened again gives the same pointer.
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
    ENTER(cuIpcOpenMemHandle_v2)
    ++opens;
    *pointer = kSharedAddress;
    pthread_mutex_unlock(&mutex);
    if (openers) pthread_barrier_wait(openers);
    return CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    ENTER(cuIpcCloseMemHandle)
    if (pointer != kSharedAddress || opens == 0) LEAVE(CUDA_ERROR_INVALID_VALUE);
    --opens;
    LEAVE(CUDA_SUCCESS);
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || pointer != kSharedAddress) return CUDA_ERROR_INVALID_VALUE;
    sched_yield();  // to threads that ask the same
    *(int*)value = 0;
    return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
    if (pointer != kSharedAddress) return CUDA_ERROR_INVALID_VALUE;
    *base = kSharedAddress;
    *bytes = kShared;
    return CUDA_SUCCESS;
}

// --- arrays
// ----------------------------------------------------------------------------------------------------------

static CUresult take_array(void* array, uint64_t bytes) {
    CUdeviceptr address;
    CUresult result = take(&address, up(bytes, kBlock));
    if (result == CUDA_SUCCESS) memcpy(array, &address, sizeof address);
    return result;
}
CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* d) {
    ENTER(cuArrayCreate_v2)
    LEAVE(take_array(array, d->Width * (d->Height ? d->Height : 1) * d->NumChannels * 4));
}
CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* d) {
    ENTER(cuArray3DCreate_v2)
    LEAVE(take_array(array, d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1) * d->NumChannels * 4));
}
CUresult cuArrayDestroy(CUarray array) {
    ENTER(cuArrayDestroy)
    LEAVE(drop((uint64_t)array));
}
CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned levels) {
    ENTER(cuMipmappedArrayCreate)
    uint64_t bytes = 0;
    for (unsigned l = 0; l < levels; ++l) bytes += (d->Width >> l) * (d->Height >> l) * d->NumChannels * 4;
    LEAVE(take_array(array, bytes));
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    ENTER(cuMipmappedArrayDestroy)
    LEAVE(drop((uint64_t)array));
}

// --- virtual memory
// --------------------------------------------------------------------------------------------------

static void unrefer(struct physical* physical) {
    if (--physical->references == 0) {
        physical_bytes -= physical->bytes;
        free(physical);
    }
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t n, const CUmemAllocationProp* p,
                     unsigned long long flags) {
    ENTER(cuMemCreate)
    struct physical* physical = malloc(sizeof *physical);
    *physical = (struct physical){n, 1};
    *handle = (CUmemGenericAllocationHandle)physical;
    physical_bytes += n;
    LEAVE(CUDA_SUCCESS);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(cuMemRelease)
    unrefer((struct physical*)handle);
    LEAVE(CUDA_SUCCESS);
}
CUresult cuMemMap(CUdeviceptr address, size_t n, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    ENTER(cuMemMap)
    int i = 0;
    while (mappings[i].address) ++i;
    mappings[i] = (struct mapping){address, n, (struct physical*)handle};
    ++mappings[i].physical->references;
    LEAVE(CUDA_SUCCESS);
}
CUresult cuMemUnmap(CUdeviceptr address, size_t n) {
    ENTER(cuMemUnmap)
    for (int i = 0; i < 64; ++i) {
        if (!mappings[i].address || mappings[i].address < address || mappings[i].address >= address + n) continue;
        unrefer(mappings[i].physical);
        mappings[i].address = 0;
    }
    LEAVE(CUDA_SUCCESS);
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    ENTER(cuMemRetainAllocationHandle)
    for (int i = 0; i < 64; ++i) {
        if (mappings[i].address != (uint64_t)address) continue;
        ++mappings[i].physical->references;
        *handle = (CUmemGenericAllocationHandle)mappings[i].physical;
        LEAVE(CUDA_SUCCESS);
    }
    LEAVE(CUDA_ERROR_INVALID_VALUE);
}

// --- contexts
// --------------------------------------------------------------------------------------------------------

static int primary_references;
static int primary;

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    ENTER(cuCtxCreate_v2)
    *context = current = (CUcontext)(uintptr_t)(0x1000 + ++contexts_made);
    LEAVE(CUDA_SUCCESS);
}
CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
}
static void clear(CUcontext context) {
    for (int i = 0; i < kMaximum; ++i)
        if (items[i].address && items[i].context == context) drop(items[i].address);
    if (current == context) current = NULL;
}
CUresult cuCtxDestroy_v2(CUcontext context) {
    ENTER(cuCtxDestroy_v2)
    clear(context);
    LEAVE(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain)
    ++primary_references;
    *context = (CUcontext)&primary;
    LEAVE(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2)
    if (--primary_references == 0) clear((CUcontext)&primary);
    LEAVE(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset_v2)
    primary_references = 0;
    clear((CUcontext)&primary);
    LEAVE(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    *flags = 0;
    *active = primary_references > 0;
    return CUDA_SUCCESS;
}
