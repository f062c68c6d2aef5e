#include "graph_memory.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "addresses.hpp"
#include "handles.hpp"

namespace gemlet::sim {
namespace {

constexpr uint64_t kBlockBytes = 32u << 20;

struct Store {
    GraphPool pool;
    std::vector<std::shared_ptr<GraphBlock>> blocks;
};

std::mutex mutex;
Store& store_of(Device& device) {  // under the mutex
    static auto* all = new std::map<Device*, Store>;
    return (*all)[&device];
}

std::shared_ptr<GraphBlock> new_block(Device& device, Store& store) {
    check(device.reserve(kBlockBytes), CUDA_ERROR_OUT_OF_MEMORY);
    store.pool.reserved += kBlockBytes;
    store.pool.reserved_high = std::max(store.pool.reserved_high, store.pool.reserved);
    return store.blocks.emplace_back(std::make_shared<GraphBlock>());
}

}  // namespace

bool GraphBlock::is_free() const {
    return launching == 0 && !left && (last == nullptr || Dispatcher::get().is_done(last));
}

bool GraphUse::has(const GraphBlock& block) const {
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& each) { return each.get() == &block; });
}

void GraphUse::take(std::shared_ptr<GraphBlock> block) {
    block->lane = lane_;
    ++block->launching;
    blocks_.push_back(std::move(block));
}

GraphUse::~GraphUse() {
    const std::lock_guard guard(mutex);
    for (const auto& block : blocks_) {
        --block->launching;
        if (last_) block->last = last_;
    }
}

GraphRange::GraphRange(Device& device, uint64_t bytes) : device_(device) {
    check(bytes > 0 && bytes < uint64_t{1} << 56);
    bytes_ = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    base_ = reserve_addresses(0, bytes_, kBlockBytes);
    check(base_ != 0, CUDA_ERROR_OUT_OF_MEMORY);
}

GraphRange::~GraphRange() {
    const std::lock_guard guard(mutex);
    for (const auto& block : blocks_) {
        if (block->range != this) continue;
        block->range = nullptr;
        block->left = false;
    }
    if (backing_ != nullptr) Addresses::get().remove(base_);
    forget_addresses(base_, bytes_);
}

void GraphRange::back(void* context, GraphUse& use, bool left) {
    const std::lock_guard guard(mutex);
    Store& store = store_of(device_);
    const auto may_have = [&](const GraphBlock& block) {
        return !block.trimmed && !use.has(block) && (block.is_free() || (block.lane == use.lane_ && !block.left));
    };
    std::erase_if(blocks_, [&](const auto& block) {
        return block->trimmed || use.has(*block) || (block->range != this && !may_have(*block));
    });
    const auto take = [&](const auto& suits) {
        for (size_t i = 0; i < store.blocks.size() && blocks_.size() < bytes_ / kBlockBytes; ++i) {
            const auto& block = store.blocks[i];
            const bool has = std::find(blocks_.begin(), blocks_.end(), block) != blocks_.end();
            if (!has && may_have(*block) && suits(*block)) blocks_.push_back(block);
        }
    };
    take([](const GraphBlock& block) { return block.is_free(); });
    take([](const GraphBlock&) { return true; });
    while (blocks_.size() < bytes_ / kBlockBytes) blocks_.push_back(new_block(device_, store));
    for (const auto& block : blocks_) {
        use.take(block);
        block->range = this;
        block->left = left;
    }
    if (backing_ != nullptr) return;
    auto backing = Backing::in_arena(bytes_);
    check(backing != nullptr && backing->map(base_, 0, bytes_, true) != 0, CUDA_ERROR_OUT_OF_MEMORY);
    backing_ = std::move(backing);
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
    return store_of(device).pool;
}

void reset_graph_pool_high(Device& device) {
    const std::lock_guard guard(mutex);
    GraphPool& pool = store_of(device).pool;
    pool.reserved_high = pool.reserved;
}

void trim_graph_pool(Device& device) {
    const std::lock_guard guard(mutex);
    Store& store = store_of(device);
    std::erase_if(store.blocks, [&](const auto& block) {
        block->trimmed = block->is_free();
        if (!block->trimmed) return false;
        device.release(kBlockBytes);
        store.pool.reserved -= kBlockBytes;
        return true;
    });
}

}  // namespace gemlet::sim
