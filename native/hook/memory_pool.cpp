// Stream-ordered memory. A pool holds more than is allocated from it, keeps it after frees and gives it back when it
// likes, so what counts is the size the driver says is reserved, read again after every call that may change it and
// before anybody is refused.
//
// Nothing is read or charged inside a stream capture: there, an allocation becomes a graph node and takes no memory.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "client.h"
#include "context.h"
#include "driver.h"
#include "memory_books.h"
#include "memory_size.h"
#include "own_calls.h"
#include "reentry.h"
#include "streams.h"
#include "wire.h"

namespace gemlet::hook {

// Lives for ever: allocations name it.
struct Pool {
    CUmemoryPool handle;
    CUdevice device;
    std::mutex mutex;
    uint64_t booked = 0;                 // what the driver reserved when we last looked; charged
    uint64_t live = 0;                   // of which allocated and not freed, as far as we saw
    std::atomic<bool> destroyed{false};  // by the program; the driver keeps it until its last allocation is freed
};

namespace {

struct Pools {
    std::mutex mutex;
    std::vector<Pool*> all;
};

Pools& pools() {
    static auto* all = new Pools;
    return *all;
}

Pool* find(CUmemoryPool handle) {
    for (Pool* pool : pools().all)
        if (pool->handle == handle && !pool->destroyed) return pool;
    return nullptr;
}

Pool* known_pool(CUmemoryPool handle) {
    std::lock_guard lock(pools().mutex);
    return find(handle);
}

// The current default pool of a device, a pool the program made, or one from a library that made it out of our sight.
Pool* pool_of(CUmemoryPool handle, CUdevice device) {
    if (!handle || device < 0) return nullptr;
    std::lock_guard lock(pools().mutex);
    if (Pool* pool = find(handle)) return pool;
    auto* pool = new Pool{.handle = handle, .device = device, .mutex = {}};
    pools().all.push_back(pool);
    has_elastic(device);
    return pool;
}

Pool* current_pool(CUdevice device) {
    CUmemoryPool handle = nullptr;
    auto get_pool = own().cuDeviceGetMemPool;
    return device >= 0 && get_pool && get_pool(&handle, device) == CUDA_SUCCESS ? pool_of(handle, device) : nullptr;
}

// Makes `booked` what the driver says. `reserved` was charged in advance and becomes part of it. Holds pool.mutex.
void settle(Pool& pool, uint64_t reserved) {
    uint64_t now = pool.live;  // what is left of a destroyed pool is what is still allocated
    if (!pool.destroyed) {
        RelaxedCapture relaxed;
        cuuint64_t bytes = 0;
        auto get = own().cuMemPoolGetAttribute;
        bool known = get && get(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS;
        now = known ? bytes : std::max(pool.booked, pool.live);
    }
    const uint64_t charged = pool.booked + reserved;
    if (now > charged) book(pool.device, now - charged);
    if (now < charged) give_back(pool.device, charged - now);
    pool.booked = now;
}

// What an allocation may make the pool grow by, as far as it is free to choose below the limit.
uint64_t expected_growth(Pool& pool, uint64_t bytes) {
    std::lock_guard lock(pool.mutex);
    if (pool.booked >= pool.live && pool.booked - pool.live >= bytes) return 0;
    const uint64_t block = round_up(bytes, kPoolBlock);
    MemoryView view = memory_view(pool.device);
    const bool fits = view.limit == wire::kNoLimit || (view.used <= view.limit && block <= view.limit - view.used);
    return fits ? block : round_up(bytes, kBlock);
}

bool captured(CUstream stream, bool per_thread) {
    if (launch_state.captures.load(std::memory_order_relaxed) == 0) return false;
    return is_capturing(!stream && per_thread ? CU_STREAM_PER_THREAD : stream);
}

template <class Call>
CUresult allocate(Pool* pool, CUdeviceptr* pointer, uint64_t size, Call&& call) {
    if (!pool || size == 0 || size >= kAbsurd) return call();
    const uint64_t bytes = round_up(size, kSmallUnit);
    const uint64_t reserved = expected_growth(*pool, bytes);
    if (!charge(pool->device, reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call();
    std::optional<Allocation> stale;
    if (result == CUDA_SUCCESS && pointer)
        stale = allocations().put(*pointer, {bytes, nullptr, pool, pool->device, Allocation::Kind::kPooled});
    {
        std::lock_guard lock(pool->mutex);
        if (result == CUDA_SUCCESS && pointer) pool->live += bytes;
        settle(*pool, reserved);
    }
    if (stale) settle_freed(*pointer, *stale);  // a pointer whose free went into a graph
    return result;
}

template <class Call>
CUresult allocate_async(CUdeviceptr* pointer, size_t size, CUstream stream, bool per_thread, Call&& call) {
    Reentry reentry;
    if (reentry.nested() || captured(stream, per_thread)) return call();
    return allocate(current_pool(device_of_stream(stream)), pointer, size, call);
}

template <class Call>
CUresult allocate_from(CUmemoryPool pool, CUdeviceptr* pointer, size_t size, CUstream stream, bool per_thread,
                       Call&& call) {
    Reentry reentry;
    if (reentry.nested() || captured(stream, per_thread)) return call();
    return allocate(pool_of(pool, device_of_stream(stream)), pointer, size, call);
}

template <class Call>
CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread, Call&& call) {
    Reentry reentry;
    if (reentry.nested() || captured(stream, per_thread)) return call();
    auto allocation = allocations().take(pointer);
    CUresult result = call();
    if (!allocation) return result;
    if (result == CUDA_SUCCESS)
        settle_freed(pointer, *allocation);
    else
        allocations().put(pointer, *allocation);
    return result;
}

}  // namespace

void pooled_freed(Pool* pool, uint64_t bytes) {
    std::lock_guard lock(pool->mutex);
    pool->live -= std::min(bytes, pool->live);
    settle(*pool, 0);
}

void refresh_pools(CUdevice device) {
    std::vector<Pool*> all;
    {
        std::lock_guard lock(pools().mutex);
        all = pools().all;
    }
    for (Pool* pool : all) {
        if (pool->device != device) continue;
        std::lock_guard lock(pool->mutex);
        settle(*pool, 0);
    }
}

void forget_pools() {
    new (&pools()) Pools;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
    return allocate_async(pointer, bytes, stream, false,
                          [=] { return real::cuMemAllocAsync(pointer, bytes, stream); });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
    return allocate_async(pointer, bytes, stream, true,
                          [=] { return real::cuMemAllocAsync_ptsz(pointer, bytes, stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_from(pool, pointer, bytes, stream, false,
                         [=] { return real::cuMemAllocFromPoolAsync(pointer, bytes, pool, stream); });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_from(pool, pointer, bytes, stream, true,
                         [=] { return real::cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream); });
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, false, [=] { return real::cuMemFreeAsync(pointer, stream); });
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, true, [=] { return real::cuMemFreeAsync_ptsz(pointer, stream); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    Reentry reentry;
    CUresult result = real::cuMemPoolCreate(pool, properties);
    if (result == CUDA_SUCCESS && !reentry.nested() && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        pool_of(*pool, properties->location.id);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    Pool* pool = known_pool(handle);
    if (!pool) return real::cuMemPoolDestroy(handle);
    std::lock_guard lock(pool->mutex);
    CUresult result = real::cuMemPoolDestroy(handle);
    if (result != CUDA_SUCCESS) return result;
    pool->destroyed = true;
    settle(*pool, 0);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    CUresult result = real::cuMemPoolTrimTo(handle, keep);
    Pool* pool = result == CUDA_SUCCESS ? known_pool(handle) : nullptr;
    if (!pool) return result;
    std::lock_guard lock(pool->mutex);
    settle(*pool, 0);
    return result;
}

}  // extern "C"
