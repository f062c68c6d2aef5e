#include "hook/memory/slab.h"

#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "hook/memory/size.h"

namespace gemlet::hook {

namespace {

constexpr size_t kDevices = 64;

struct Slab {
    uint32_t allocations = 0;
    bool charged = false;  // not while the first ones in it ask for the charge
};

struct Slabs {
    std::array<std::atomic<int64_t>, kDevices> room{};  // bytes no allocation uses, over all slabs of the device
    std::array<std::atomic<uint64_t>, kDevices> requests{};
    PointerMap<Slab> by_block;
};

Slabs& slabs() {
    static auto* all = new Slabs;
    return *all;
}

std::atomic<int64_t>& room_on(CUdevice device) {
    return slabs().room[static_cast<size_t>(device) % kDevices];
}

std::atomic<uint64_t>& requests_on(CUdevice device) {
    return slabs().requests[static_cast<size_t>(device) % kDevices];
}

}  // namespace

SlabRequest::SlabRequest(CUdevice device) : device_(device) {
    requests_on(device_).fetch_add(1, std::memory_order_relaxed);
}
SlabRequest::~SlabRequest() {
    requests_on(device_).fetch_sub(1, std::memory_order_relaxed);
}
uint64_t SlabRequest::others() const {
    return requests_on(device_).load(std::memory_order_relaxed) - 1;
}

bool slabs_have_room(CUdevice device, uint64_t bytes) {
    return room_on(device).load(std::memory_order_relaxed) >= static_cast<int64_t>(bytes);
}

bool enter_slab(CUdeviceptr pointer, const Allocation& allocation) {
    bool first = false, charged = false;
    slabs().by_block.edit(slab_of(pointer), {}, [&](Slab& slab) {
        first = slab.allocations++ == 0;
        charged = slab.charged;
        return true;
    });
    const auto change = static_cast<int64_t>(first ? kBlock - allocation.bytes : -allocation.bytes);
    room_on(allocation.device).fetch_add(change, std::memory_order_relaxed);
    return charged;
}

bool charge_slab(CUdeviceptr pointer) {
    bool before = false;
    slabs().by_block.edit(slab_of(pointer), {}, [&](Slab& slab) {
        before = std::exchange(slab.charged, true);
        return true;
    });
    return !before;
}

bool is_charged_slab(CUdeviceptr pointer) {
    bool charged = false;
    slabs().by_block.edit(slab_of(pointer), {}, [&](Slab& slab) {
        charged = slab.charged;
        return slab.allocations > 0;
    });
    return charged;
}

void leave_slab(CUdeviceptr pointer, const Allocation& allocation) {
    bool last = false, charged = false;
    slabs().by_block.edit(slab_of(pointer), {1, true}, [&](Slab& slab) {
        last = --slab.allocations == 0;
        charged = slab.charged;
        return !last;
    });
    const auto change = static_cast<int64_t>(last ? allocation.bytes - kBlock : allocation.bytes);
    room_on(allocation.device).fetch_add(change, std::memory_order_relaxed);
    if (last && charged) give_back(allocation.device, kBlock);
}

void forget_slabs() {
    new (&slabs()) Slabs;
}

}  // namespace gemlet::hook
