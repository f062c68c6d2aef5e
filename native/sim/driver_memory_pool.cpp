// Stream-ordered allocation and its pools.
//
// A pool's memory stays mapped until it is trimmed, so a free takes effect at once for its own stream and, for other
// streams, when that stream has come to it.
#include <algorithm>
#include <set>

#include "addresses.hpp"
#include "allocations.hpp"
#include "capture.hpp"
#include "visible_devices.hpp"

struct CUmemPoolHandle_st {
    gemlet::sim::Tag tag;
    std::unique_ptr<gemlet::sim::Heap> heap;
    gemlet::sim::Device* device;
    std::mutex mutex;
    struct Pending {
        CUdeviceptr address;
        gemlet::sim::QueueRef queue;
        gemlet::sim::OpRef freed;
    };
    std::vector<Pending> pending;  // freed, but not yet free for every stream
    std::vector<gemlet::sim::OpRef> recent;
    uint64_t threshold = 0, used = 0, used_high = 0, reserved_high = 0;
    int reuse[3] = {1, 1, 1};
    bool destroyed = false;  // there until nothing of it is in use
};

namespace gemlet::sim {
namespace {

constexpr uint64_t kSlab = 32u << 20;  // what pools take from the device at a time

std::mutex pools_mutex;
std::set<CUmemoryPool>& pools() {
    static auto* all = new std::set<CUmemoryPool>;
    return *all;
}
std::map<CUdevice, CUmemoryPool>& chosen() {
    static auto* all = new std::map<CUdevice, CUmemoryPool>;
    return *all;
}

CUmemoryPool checked(CUmemoryPool pool) {
    checked_handle(pool, Tag::kPool);
    check(!pool->destroyed);
    return pool;
}

CUmemoryPool make_pool(Device& device) {
    CUmemoryPool pool = HandlePool<CUmemPoolHandle_st>::make();
    pool->device = &device;
    pool->heap = std::make_unique<Heap>(device, kSlab, kSlab, true);
    pool->pending.clear();
    pool->recent.clear();
    pool->threshold = pool->used = pool->used_high = pool->reserved_high = 0;
    pool->destroyed = false;
    created(pool, Tag::kPool);
    const std::lock_guard guard(pools_mutex);
    pools().insert(pool);
    return pool;
}

CUmemoryPool default_pool(CUdevice ordinal) {
    static auto* defaults = new std::map<CUdevice, CUmemoryPool>;
    static std::mutex mutex;
    const std::lock_guard guard(mutex);
    CUmemoryPool& pool = (*defaults)[ordinal];
    if (pool == nullptr) pool = make_pool(device_of(ordinal));
    return pool;
}

CUmemoryPool current_pool(CUdevice ordinal) {
    {
        const std::lock_guard guard(pools_mutex);
        const auto found = chosen().find(ordinal);
        if (found != chosen().end()) return found->second;
    }
    return default_pool(ordinal);
}

// Gives back to the heap what `queue` may already use again. The caller holds the pool's mutex.
void collect(CUmemoryPool pool, const QueueRef& queue) {
    std::erase_if(pool->pending, [&](const CUmemPoolHandle_st::Pending& p) {
        const bool done = Dispatcher::get().is_done(p.freed);
        if (!done && p.queue != queue) return false;
        if (!done) pool->recent.push_back(p.freed);
        pool->heap->give(p.address);
        return true;
    });
}

// Memory that an unfinished operation may still touch must stay mapped.
void trim(CUmemoryPool pool, uint64_t keep) {
    collect(pool, nullptr);
    std::erase_if(pool->recent, [](const OpRef& op) { return Dispatcher::get().is_done(op); });
    if (pool->recent.empty()) pool->heap->trim(keep);
}

// Of the pools that were destroyed, those of which nothing is in use any more. The caller holds `pools_mutex`.
void end_destroyed() {
    std::erase_if(pools(), [](CUmemoryPool pool) {
        {
            const std::lock_guard guard(pool->mutex);
            if (!pool->destroyed) return false;
            trim(pool, 0);
            if (pool->used > 0 || !pool->pending.empty() || pool->heap->reserved() > 0) return false;
            pool->heap.reset();
        }
        HandlePool<CUmemPoolHandle_st>::drop(pool);
        return true;
    });
}

CUdeviceptr allocate(CUmemoryPool pool, CUstream stream, uint64_t bytes) {
    check(bytes > 0);
    const std::lock_guard guard(pool->mutex);
    collect(pool, stream->queue);
    Heap::Piece piece = pool->heap->take(bytes);
    if (piece.address == 0) {  // what other streams freed, and other pools keep, is worth waiting for
        for (const auto& p : pool->pending) Dispatcher::get().wait(p.freed);
        collect(pool, stream->queue);
        trim(pool, 0);
        piece = pool->heap->take(bytes);
    }
    check(piece.address != 0, CUDA_ERROR_OUT_OF_MEMORY);
    Range range;
    range.base = piece.address;
    range.bytes = bytes;
    range.place = Place::kPooled;
    range.device = static_cast<int>(pool->device->index());
    range.context = owner_of(stream->context);
    range.owner = pool;
    range.backing = piece.backing;
    range.backing_offset = piece.backing_offset;
    Addresses::get().add(std::move(range));
    pool->used += bytes;
    pool->used_high = std::max(pool->used_high, pool->used);
    pool->reserved_high = std::max(pool->reserved_high, pool->heap->reserved());
    return piece.address;
}

void release(const Range& range, const QueueRef& queue, OpRef freed) {
    auto* pool = static_cast<CUmemoryPool>(range.owner);
    const std::lock_guard guard(pool->mutex);
    pool->used -= range.bytes;
    if (freed == nullptr) {
        pool->heap->give(range.base);
        if (pool->threshold < pool->heap->reserved()) trim(pool, pool->threshold);
        return;
    }
    pool->pending.push_back({range.base, queue, std::move(freed)});
}

}  // namespace

void free_pooled(CUdeviceptr address) {
    const auto range = Addresses::get().remove(address);
    check(range.has_value());
    release(*range, nullptr, nullptr);
}

void pools_synchronized() {
    const std::lock_guard guard(pools_mutex);
    for (CUmemoryPool pool : pools()) {
        const std::lock_guard inner(pool->mutex);
        if (!pool->pending.empty() || pool->heap->reserved() > pool->threshold) trim(pool, pool->threshold);
    }
    end_destroyed();
}

}  // namespace gemlet::sim

using namespace gemlet::sim;

namespace {

CUresult allocate_async(const char* name, CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return api(name, [&] {
        check(address != nullptr);
        CUstream s = resolve_stream(stream);
        if (capturing(s)) {
            CUDA_MEM_ALLOC_NODE_PARAMS p{};
            p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            p.poolProps.location.id = ordinal_of(s->context->device->index());
            p.bytesize = bytes;
            AllocStep step = alloc_step(p, s->capture_tail.data(), s->capture_tail.size());
            *address = step.params.dptr;
            return capture_step(s, std::move(step));
        }
        forbid_implicit(s);
        if (pool == nullptr) pool = current_pool(ordinal_of(s->context->device->index()));
        *address = allocate(checked(pool), s, bytes);
    });
}

}  // namespace

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
    return allocate_async(__func__, address, bytes, nullptr, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_async(__func__, address, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    return api(__func__, [&] {
        if (address == 0) return;
        CUstream s = resolve_stream(stream);
        if (capturing(s)) return capture_step(s, free_step(s->capture->graph, address));
        forbid_implicit(s);
        const auto range = Addresses::get().find(address);
        check(range && range->base == address);
        if (range->place == Place::kDevice) {
            const auto free = [address, id = range->id] {
                const auto there = Addresses::get().find(address);
                if (there && there->id == id) free_device(address);
            };
            return enqueue(s, {action(free)});
        }
        check(range->place == Place::kPooled);
        std::vector<OpRef> ops;
        // Queued work may still use the range; it leaves the address map when the stream comes to the free, unless an
        // allocation of the same stream has the address by then.
        ops.push_back(action([address, id = range->id] { Addresses::get().remove(address, id); }));
        OpRef freed = ops.back();
        enqueue(s, std::move(ops));
        release(*range, s->queue, std::move(freed));
    });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    return api(__func__, [&] {
        check(pool != nullptr && properties != nullptr);
        check(properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
              properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        check(properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);
        *pool = make_pool(device_of(properties->location.id));
    });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    return api(__func__, [&] {
        checked(pool);
        check(pool != default_pool(ordinal_of(pool->device->index())));
        const std::lock_guard guard(pools_mutex);
        std::erase_if(chosen(), [&](const auto& entry) { return entry.second == pool; });
        {
            const std::lock_guard inner(pool->mutex);
            pool->destroyed = true;
            pool->threshold = 0;
        }
        end_destroyed();
    });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return api(__func__, [&] {
        const std::lock_guard guard(checked(pool)->mutex);
        trim(pool, keep);
    });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
    return api(__func__, [&] {
        check(value != nullptr);
        const std::lock_guard guard(checked(pool)->mutex);
        switch (which) {
            case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
                pool->reuse[which - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *static_cast<int*>(value);
                break;
            case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
                pool->threshold = *static_cast<cuuint64_t*>(value);
                break;
            case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
                check(*static_cast<cuuint64_t*>(value) == 0);
                pool->reserved_high = pool->heap->reserved();
                break;
            case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
                check(*static_cast<cuuint64_t*>(value) == 0);
                pool->used_high = pool->used;
                break;
            default:
                fail(CUDA_ERROR_INVALID_VALUE);
        }
    });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
    return api(__func__, [&] {
        check(value != nullptr);
        const std::lock_guard guard(checked(pool)->mutex);
        auto* wide = static_cast<cuuint64_t*>(value);
        switch (which) {
            case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
                *static_cast<int*>(value) = pool->reuse[which - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
                break;
            case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
                *wide = pool->threshold;
                break;
            case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
                *wide = pool->heap->reserved();
                break;
            case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
                *wide = pool->reserved_high;
                break;
            case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
                *wide = pool->used;
                break;
            case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
                *wide = pool->used_high;
                break;
            default:
                fail(CUDA_ERROR_INVALID_VALUE);
        }
    });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
    return api(__func__, [&] {
        checked(pool);
        check(access != nullptr || count == 0);
    });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
    return api(__func__, [&] {
        checked(pool);
        check(flags != nullptr && location != nullptr);
        *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    return api(__func__, [&] {
        check(pool != nullptr);
        device_of(device);
        *pool = default_pool(device);
    });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return api(__func__, [&] {
        check(pool != nullptr);
        device_of(device);
        *pool = current_pool(device);
    });
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return api(__func__, [&] {
        device_of(device);
        checked(pool);
        const std::lock_guard guard(pools_mutex);
        chosen()[device] = pool;
    });
}

}  // extern "C"
