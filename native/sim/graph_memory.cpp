#include "graph_memory.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "addresses.hpp"
#include "handles.hpp"

namespace gemlet::sim {
namespace {

std::mutex mutex;
GraphPool& pool_of(Device& device) {  // under the mutex
    static auto* all = new std::map<Device*, GraphPool>;
    return (*all)[&device];
}

}  // namespace

GraphRange::GraphRange(Device& device, uint64_t bytes) : device_(device) {
    const uint64_t granule = device.profile().granularity;
    check(bytes > 0 && bytes < uint64_t{1} << 56);
    bytes_ = (bytes + granule - 1) / granule * granule;
    base_ = reserve_addresses(0, bytes_, granule);
    check(base_ != 0, CUDA_ERROR_OUT_OF_MEMORY);
}

GraphRange::~GraphRange() {
    const std::lock_guard guard(mutex);
    if (backing_ != nullptr) {
        Addresses::get().remove(base_);
        pool_of(device_).used -= bytes_;
    }
    forget_addresses(base_, bytes_);
}

void GraphRange::back(void* context) {
    const std::lock_guard guard(mutex);
    if (backing_ != nullptr) return;
    GraphPool& pool = pool_of(device_);
    const uint64_t kept = pool.reserved - pool.used, missing = bytes_ - std::min(bytes_, kept);
    check(missing == 0 || device_.reserve(missing), CUDA_ERROR_OUT_OF_MEMORY);
    pool.reserved += missing;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    auto backing = Backing::in_arena(bytes_);
    check(backing != nullptr && backing->map(base_, 0, bytes_, true) != 0, CUDA_ERROR_OUT_OF_MEMORY);
    backing_ = std::move(backing);
    pool.used += bytes_;
    pool.used_high = std::max(pool.used_high, pool.used);
    Range range;
    range.base = base_;
    range.bytes = bytes_;
    range.place = Place::kMapped;
    range.device = static_cast<int>(device_.index());
    range.context = context;
    Addresses::get().add(std::move(range));
}

GraphPool graph_pool(Device& device) {
    const std::lock_guard guard(mutex);
    return pool_of(device);
}

void reset_graph_pool_highs(Device& device, bool used, bool reserved) {
    const std::lock_guard guard(mutex);
    GraphPool& pool = pool_of(device);
    if (used) pool.used_high = pool.used;
    if (reserved) pool.reserved_high = pool.reserved;
}

void trim_graph_pool(Device& device) {
    const std::lock_guard guard(mutex);
    GraphPool& pool = pool_of(device);
    if (pool.reserved > pool.used) device.release(pool.reserved - pool.used);
    pool.reserved = pool.used;
}

}  // namespace gemlet::sim
