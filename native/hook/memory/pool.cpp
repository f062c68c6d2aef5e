// Stream-ordered memory. A pool holds more than is allocated from it, keeps memory after frees and gives it back
// at its own time. So the hook counts the size that the driver reports as reserved, and reads it again after every
// call that may change it and before it refuses a request.
//
// Nothing is read or charged inside a stream capture: there, an allocation becomes a graph node and takes no memory.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "hook/link/say.h"
#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/ledger.h"
#include "hook/memory/location.h"
#include "hook/memory/movable.h"
#include "hook/memory/shared_growth.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/submit/device.h"
#include "hook/submit/streams.h"
#include "wire.h"

namespace gemlet::hook {

// Lives for ever: allocations name it.
struct Pool {
    CUmemoryPool handle;
    CUdevice device;
    std::mutex mutex;
    uint64_t accounted = 0;  // what the driver reserved when we last looked; charged
    uint64_t live = 0;       // of which allocated and not freed, as far as we saw
    uint64_t pending = 0;    // for allocations that are being made, in what it has or in what it grows by
    // Only this process on this device can hold on to its memory, so where memory can move, this memory may.
    std::atomic<bool> private_to_us{false};
    // By the program. The driver has it until nothing of it is allocated and all frees are complete: as long as it is
    // there it tells what it holds, and memory is given back when the driver has given it back.
    std::atomic<bool> destroyed{false};
    std::atomic<bool> gone{false};  // destroyed by the driver, too
};

namespace {

struct Pools {
    std::mutex mutex;
    std::vector<Pool*> all;
    std::vector<CUmemoryPool> shared;  // given to other devices
    std::vector<CUmemoryPool> hosts;   // of the host's memory, which is not counted
    std::atomic<uint64_t> past{0};     // by device, a bit each: a pool grew well beyond the limit
};

Pools& pools() {
    static auto* all = new Pools;
    return *all;
}

Pool* find(CUmemoryPool handle) {
    for (Pool* pool : pools().all)
        if (pool->handle == handle) return pool;
    return nullptr;
}

Pool* known_pool(CUmemoryPool handle) {
    std::lock_guard lock(pools().mutex);
    return find(handle);
}

bool is_of(CUmemoryPool handle, CUdevice device) {
    for (const auto get : {own().cuDeviceGetDefaultMemPool, own().cuDeviceGetMemPool}) {
        CUmemoryPool found = nullptr;
        if (get && get(&found, device) == CUDA_SUCCESS && found == handle) return true;
    }
    return false;
}

// A stream may use the pool of another device. `likely`: the stream's; of one that no device names.
CUdevice device_of_pool(CUmemoryPool handle, CUdevice likely) {
    if (is_of(handle, likely)) return likely;
    CUmemoryPool any = nullptr;
    const auto get = own().cuDeviceGetMemPool;
    for (CUdevice device = 0; device < kMaxDevices && get && get(&any, device) == CUDA_SUCCESS; ++device)
        if (is_of(handle, device)) return device;
    return likely;
}

// With the lock of all.
Pool* add_pool(CUmemoryPool handle, CUdevice device) {
    auto* pool = new Pool{.handle = handle, .device = device, .mutex = {}};
    CUmemoryPool of_device = nullptr;
    auto get_default = own().cuDeviceGetDefaultMemPool;
    const auto& shared = pools().shared;
    pool->private_to_us = get_default && get_default(&of_device, device) == CUDA_SUCCESS && of_device == handle &&
                          std::find(shared.begin(), shared.end(), handle) == shared.end();
    pools().all.push_back(pool);
    has_elastic(device);
    return pool;
}

// The current default pool of a device, a pool that the program made, or a pool of a library whose creation we did
// not see. `likely`: its device, unless another one says that the pool is its own.
Pool* pool_of(CUmemoryPool handle, CUdevice likely) {
    if (!handle || likely < 0) return nullptr;
    std::lock_guard lock(pools().mutex);
    if (Pool* pool = find(handle)) return pool;
    const auto& hosts = pools().hosts;
    if (std::find(hosts.begin(), hosts.end(), handle) != hosts.end()) return nullptr;
    return add_pool(handle, device_of_pool(handle, likely));
}

Pool* current_pool(CUdevice device) {
    CUmemoryPool handle = nullptr;
    auto get_pool = own().cuDeviceGetMemPool;
    return device >= 0 && get_pool && get_pool(&handle, device) == CUDA_SUCCESS ? pool_of(handle, device) : nullptr;
}

bool is_default(const Pool& pool) {
    CUmemoryPool found = nullptr;
    auto get = own().cuDeviceGetDefaultMemPool;
    return get && get(&found, pool.device) == CUDA_SUCCESS && found == pool.handle;
}

// A pool that is destroyed is not its device's current one any more, and keeps nothing that is not in use.
void leave_device(const Pool& pool) {
    CUmemoryPool current = nullptr, fallback = nullptr;
    const auto& d = own();
    if (d.cuDeviceGetMemPool && d.cuDeviceGetDefaultMemPool && d.cuDeviceSetMemPool &&
        d.cuDeviceGetMemPool(&current, pool.device) == CUDA_SUCCESS && current == pool.handle &&
        d.cuDeviceGetDefaultMemPool(&fallback, pool.device) == CUDA_SUCCESS)
        d.cuDeviceSetMemPool(pool.device, fallback);
    cuuint64_t nothing = 0;
    if (d.cuMemPoolSetAttribute) d.cuMemPoolSetAttribute(pool.handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
}

// Whether the group is well beyond its limit because a pool grew. Not by less than a pool's block: that is what pools
// grow by, and a program goes on with what it has.
bool is_past(CUdevice device, const MemoryView& view) {
    const uint64_t bit = uint64_t{1} << device;
    if (!(pools().past.load(std::memory_order_relaxed) & bit)) return false;
    if (view.used > view.limit && view.used - view.limit >= kPoolBlock) return true;
    pools().past.fetch_and(~bit);
    return false;
}

// What the driver says that it holds. None: it does not say.
std::optional<uint64_t> held_by(const Pool& pool) {
    RelaxedCapture relaxed;
    cuuint64_t bytes = 0;
    const auto get = own().cuMemPoolGetAttribute;
    if (!get || get(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS) return std::nullopt;
    return bytes;
}

// Lets the driver destroy a pool that the program has destroyed, or is about to, if it holds nothing any more. Holds
// pool.mutex.
CUresult end_if_empty(Pool& pool) {
    if (pool.gone) return CUDA_SUCCESS;
    const DriverVisit visit;
    if (!visit) return CUDA_ERROR_DEINITIALIZED;
    RelaxedCapture relaxed;
    real::cuMemPoolTrimTo(pool.handle, 0);
    const auto held = held_by(pool);
    if (held.value_or(0) > 0) return CUDA_SUCCESS;
    const bool is_known = held || !pool.destroyed;  // else it went with all of its device's memory
    if (is_known)
        if (const CUresult result = real::cuMemPoolDestroy(pool.handle); result != CUDA_SUCCESS) return result;
    pool.gone = true;
    std::lock_guard lock(pools().mutex);
    std::erase(pools().all, &pool);
    std::erase(pools().shared, pool.handle);
    return CUDA_SUCCESS;
}

// Makes `accounted` what the driver says. `reserved` was charged in advance and becomes part of it. Holds pool.mutex.
void settle(Pool& pool, uint64_t reserved) {
    if (pool.destroyed) end_if_empty(pool);
    uint64_t now = pool.gone ? 0 : held_by(pool).value_or(std::max(pool.accounted, pool.live));
    // What the pool gave back meanwhile it takes again for those that were to have it.
    if (pool.pending > 0) now = std::max(now, std::min(pool.accounted, pool.live + pool.pending));
    const uint64_t charged = pool.accounted + reserved;
    if (now > charged) {
        account(pool.device, now - charged);
        pools().past.fetch_or(uint64_t{1} << pool.device);
    }
    if (now < charged) give_back(pool.device, charged - now);
    pool.accounted = now;
    if (pool.destroyed && !pool.gone && pool.live == 0) await_frees();
}

template <class Which>
void settle_all(Which&& which) {
    std::vector<Pool*> all;
    {
        std::lock_guard lock(pools().mutex);
        all = pools().all;
    }
    for (Pool* pool : all) {
        if (!which(*pool)) continue;
        std::lock_guard lock(pool->mutex);
        settle(*pool, 0);
    }
}

// How much an allocation may make the pool grow, as far as the limit leaves a choice. Holds pool.mutex.
uint64_t expected_growth(const Pool& pool, uint64_t bytes) {
    const uint64_t taken = pool.live + pool.pending;
    const bool has_room = pool.accounted >= taken && pool.accounted - taken >= bytes;
    if (has_room && pools().past.load(std::memory_order_relaxed) == 0) [[likely]]
        return 0;
    const MemoryView view = memory_view(pool.device);
    // What it has may be in pieces, which is seen when it has grown: once, and not for each allocation.
    if (has_room && !is_past(pool.device, view)) return 0;
    const uint64_t block = round_up(bytes, kPoolBlock);
    const bool fits = view.limit == wire::kNoLimit || (view.used <= view.limit && block <= view.limit - view.used);
    return fits ? block : round_up(bytes, kBlock);
}

// Charges the growth. None: over the limit.
std::optional<uint64_t> begin_allocation(Pool& pool, uint64_t bytes) {
    uint64_t growth = 0;
    const auto begin = [&] {
        std::lock_guard lock(pool.mutex);
        growth = expected_growth(pool, bytes);
        return Growth{growth, std::exchange(pool.pending, pool.pending + bytes)};
    };
    const auto cancel = [&] {
        std::lock_guard lock(pool.mutex);
        pool.pending -= bytes;
    };
    if (!charge_growth(pool.device, begin, cancel)) return std::nullopt;
    return growth;
}

bool captured(CUstream stream, bool per_thread) {
    if (launch_state.captures.load(std::memory_order_relaxed) == 0) return false;
    return is_capturing(meant(stream, per_thread));
}

template <class Call>
CUresult allocate(Pool* pool, CUdeviceptr* pointer, uint64_t size, Call&& call) {
    if (!pool || size == 0 || size >= kAbsurd) return call();
    const uint64_t bytes = round_up(size, kSmallUnit);
    const std::optional<uint64_t> growth = begin_allocation(*pool, bytes);
    if (!growth) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call();
    std::optional<Allocation> stale;
    if (result == CUDA_SUCCESS && pointer)
        stale = allocations().put(*pointer, {bytes, nullptr, pool, pool->device, Allocation::Kind::kPooled});
    {
        std::lock_guard lock(pool->mutex);
        pool->pending -= bytes;
        if (result == CUDA_SUCCESS && pointer) pool->live += bytes;
        settle(*pool, *growth);
    }
    if (stale) settle_freed(*pointer, *stale);  // a pointer whose free went into a graph
    return result;
}

std::optional<CUresult> allocate_movable(Pool* pool, CUdeviceptr* pointer, size_t size, CUstream stream,
                                         bool per_thread) {
    if (!swap_active() || !pool || !pool->private_to_us) return std::nullopt;
    if (pool->device != device_of_stream(stream)) return std::nullopt;
    return swap_allocate_async(pointer, size, pool->handle, stream, per_thread);
}

// Other processes or devices will see the pool's memory, so it can no longer move. False if memory that is already
// allocated may be away.
bool stays_from_now_on(CUmemoryPool handle) {
    if (swap_active() && swap_pool_bytes(handle).reserved > 0) {
        say_once(Topic::kMemory,
                 "memory of a pool can move to the host, so the pool cannot be shared with other devices\n"
                 "  hint: run the program in a group without --resident, on a device without `capacity`");
        return false;
    }
    std::lock_guard lock(pools().mutex);
    pools().shared.push_back(handle);
    if (Pool* pool = find(handle)) pool->private_to_us = false;
    return true;
}

// A pool that is found or made at the location.
void note_location(CUmemoryPool handle, const CUmemLocation& location) {
    std::lock_guard lock(pools().mutex);
    std::erase(pools().hosts, handle);  // one that was there had the same handle
    if (is_on_host(location)) pools().hosts.push_back(handle);
}

// Whether all that one can tell of its memory is that it lies on the device: it may as well be memory that can move.
bool is_plain(const CUmemPoolProps& properties) {
    return properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.maxSize == 0 && properties.usage == 0;
}

template <class Call>
CUresult allocate_async(CUdeviceptr* pointer, size_t size, CUstream stream, bool per_thread, Call&& call) {
    Reentry reentry;
    if (reentry.nested() || captured(stream, per_thread)) return call();
    Pool* pool = current_pool(device_of_stream(stream));
    if (auto result = allocate_movable(pool, pointer, size, stream, per_thread)) return *result;
    return allocate(pool, pointer, size, call);
}

template <class Call>
CUresult allocate_from(CUmemoryPool pool, CUdeviceptr* pointer, size_t size, CUstream stream, bool per_thread,
                       Call&& call) {
    Reentry reentry;
    if (reentry.nested() || captured(stream, per_thread)) return call();
    Pool* known = pool_of(pool, device_of_stream(stream));
    if (auto result = allocate_movable(known, pointer, size, stream, per_thread)) return *result;
    return allocate(known, pointer, size, call);
}

template <class Call>
CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread, Call&& call) {
    Reentry reentry;
    if (reentry.nested() || captured(stream, per_thread)) return call();
    if (swap_active())
        if (auto result = swap_free_async(pointer, stream, per_thread)) return *result;
    return free_remembered(pointer, call, [=](CUdeviceptr freed, const Allocation& allocation) {
        if (allocation.kind == Allocation::Kind::kPooled) return settle_freed(freed, allocation);
        settle_freed_later(freed, allocation, meant(stream, per_thread));
    });
}

}  // namespace

void pooled_freed(Pool* pool, uint64_t bytes) {
    std::lock_guard lock(pool->mutex);
    pool->live -= std::min(bytes, pool->live);
    settle(*pool, 0);
}

void refresh_pools(CUdevice device) {
    settle_all([=](const Pool& pool) { return pool.device == device; });
}

void refresh_destroyed_pools() {
    settle_all([](const Pool& pool) { return pool.destroyed.load(); });
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
    if (result != CUDA_SUCCESS || reentry.nested()) return result;
    note_location(*pool, properties->location);
    const CUdevice device = device_at(properties->location);
    if (device < 0) return result;
    std::lock_guard lock(pools().mutex);
    Pool* known = find(*pool);  // it had the handle before
    Pool* made = known ? known : add_pool(*pool, device);
    made->private_to_us = is_plain(*properties);
    return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
    CUresult result = real::cuMemGetDefaultMemPool(pool, location, type);
    if (result == CUDA_SUCCESS) note_location(*pool, *location);
    return result;
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
    CUresult result = real::cuMemGetMemPool(pool, location, type);
    if (result == CUDA_SUCCESS) note_location(*pool, *location);
    return result;
}

// As the driver's: returns at once, and what the pool holds goes when its frees are complete.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    Reentry reentry;
    Pool* pool = reentry.nested() ? nullptr : known_pool(handle);
    if (!pool || is_default(*pool)) return real::cuMemPoolDestroy(handle);  // which refuses a default one
    if (swap_active()) swap_pool_trim(handle, 0);
    std::lock_guard lock(pool->mutex);
    if (pool->destroyed) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = end_if_empty(*pool);
    if (result != CUDA_SUCCESS) return result;
    pool->destroyed = true;
    if (!pool->gone) leave_device(*pool);
    settle(*pool, 0);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    if (swap_active()) swap_pool_trim(handle, keep);
    CUresult result = real::cuMemPoolTrimTo(handle, keep);
    Pool* pool = result == CUDA_SUCCESS ? known_pool(handle) : nullptr;
    if (!pool) return result;
    std::lock_guard lock(pool->mutex);
    settle(*pool, 0);
    return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
    CUresult result = real::cuMemPoolGetAttribute(handle, which, value);
    if (result != CUDA_SUCCESS || !swap_active()) return result;
    auto& bytes = *static_cast<cuuint64_t*>(value);
    const SwapPoolBytes movable = swap_pool_bytes(handle);
    if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) bytes += movable.reserved;
    if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) bytes += movable.reserved_high;
    if (which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) bytes += movable.used;
    if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH) bytes += movable.used_high;
    return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
    Pool* pool = known_pool(handle);
    bool others = false;
    for (size_t i = 0; map && i < count; ++i)
        others = others || map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !pool ||
                 map[i].location.id != pool->device;
    if (others && !stays_from_now_on(handle)) return CUDA_ERROR_NOT_SUPPORTED;
    return real::cuMemPoolSetAccess(handle, map, count);
}

}  // extern "C"
