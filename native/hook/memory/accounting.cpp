#include "hook/memory/accounting.h"

#include <pthread.h>
#include <array>
#include <atomic>
#include <new>

#include "hook/memory/ledger.h"
#include "hook/memory/movable.h"
#include "hook/memory/size.h"
#include "hook/memory/slab.h"
#include "hook/memory/stream_end.h"
#include "hook/submit/governance.h"
#include "wire.h"

namespace gemlet::hook {

namespace {

constexpr int kDevices = 64;

struct Accounting {
    std::array<std::atomic<uint64_t>, kDevices> held{};
    std::array<std::atomic<bool>, kDevices> elastic{};
    PointerMap<Allocation> allocations;
    PointerMap<Allocation> arrays;
};

std::atomic<bool> in_use{false};

// Never destroyed: memory is still freed while the program's destructors run.
Accounting& accounting() {
    static Accounting* all = [] {
        in_use.store(true);
        return new Accounting;
    }();
    return *all;
}

std::atomic<uint64_t>* held_on(CUdevice device) {
    return device >= 0 && device < kDevices ? &accounting().held[static_cast<size_t>(device)] : nullptr;
}

// Locks may be held by threads the child does not have, so everything is made anew; the old tables leak.
void in_child() {
    if (!in_use.load(std::memory_order_relaxed)) return;
    new (&accounting()) Accounting;
    forget_slabs();
    forget_pools();
    forget_graph_memory();
    forget_virtual_memory();
    forget_imported();
    forget_limits();
    forget_freed_later();
    forget_awaited_frees();
    forget_stream_ends();
}

[[gnu::constructor]] void watch_forks() {
    pthread_atfork(nullptr, nullptr, in_child);
}

}  // namespace

void settle_contexts(CUdevice device) {
    const uint64_t bytes = release_room(device);
    if (bytes > 0 && swap_active()) swap_show(device, bytes);
}

namespace {

bool reserve_within_limit(CUdevice device, uint64_t bytes, Wanted wanted = Wanted::kAllocation) {
    settle_contexts(device);
    if (device >= 0 && device < kDevices &&
        accounting().elastic[static_cast<size_t>(device)].load(std::memory_order_relaxed)) {
        MemoryView view = memory_view(device);
        if (view.used > view.limit || bytes > view.limit - view.used) refresh_elastic(device);
    }
    return memory_reserve(device, bytes, wanted);
}

}  // namespace

bool reserve(CUdevice device, uint64_t bytes, Wanted wanted) {
    if (!reserve_within_limit(device, bytes, wanted)) return false;
    if (bytes > 0 && swap_active() && !swap_make_room(device, bytes)) [[unlikely]] {
        memory_release(device, bytes);
        return false;
    }
    return true;
}

bool room_for_unknown(CUdevice device) {
    if (device < 0) return true;
    if (!reserve_within_limit(device, kBlock)) return false;
    memory_release(device, kBlock);
    return true;
}

bool charge_movable(CUdevice device, uint64_t bytes) {
    auto* held = held_on(device);
    if (!held || !reserve_within_limit(device, bytes)) return false;
    held->fetch_add(bytes, std::memory_order_relaxed);
    return true;
}

bool charge(CUdevice device, uint64_t bytes) {
    auto* held = held_on(device);
    if (!held) return device < 0 || work_passes_unmanaged();
    if (bytes == 0) return true;
    if (!reserve(device, bytes)) return false;
    held->fetch_add(bytes, std::memory_order_relaxed);
    return true;
}

void give_back(CUdevice device, uint64_t bytes) {
    auto* held = held_on(device);
    if (!held || bytes == 0) return;
    held->fetch_sub(bytes, std::memory_order_relaxed);
    memory_release(device, bytes);
}

void account(CUdevice device, uint64_t bytes) {
    auto* held = held_on(device);
    if (!held || bytes == 0) return;
    held->fetch_add(bytes, std::memory_order_relaxed);
    memory_account(device, bytes);
}

void has_elastic(CUdevice device) {
    if (device >= 0 && device < kDevices) accounting().elastic[static_cast<size_t>(device)].store(true);
}

void refresh_elastic(CUdevice device) {
    settle_contexts(device);
    refresh_freed_later();
    refresh_pools(device);
    refresh_graph_memory(device);
}

PointerMap<Allocation>& allocations() {
    return accounting().allocations;
}
PointerMap<Allocation>& arrays() {
    return accounting().arrays;
}

void remember(CUdeviceptr pointer, const Allocation& allocation) {
    if (auto stale = allocations().put(pointer, allocation)) settle_freed(pointer, *stale);
}

void settle_freed(CUdeviceptr pointer, const Allocation& allocation) {
    switch (allocation.kind) {
        case Allocation::Kind::kOwnBlocks:
            return give_back(allocation.device, allocation.bytes);
        case Allocation::Kind::kSlab:
            return leave_slab(pointer, allocation);
        case Allocation::Kind::kPooled:
            return pooled_freed(allocation.pool, allocation.bytes);
        case Allocation::Kind::kOfGraph:
            return graph_memory_freed(allocation.device, pointer);
    }
}

void forget_context(CUcontext context) {
    forget_imported(context);
    forget_limits(context);
    forget_freed_later(context);
    forget_graph_memory(context);
    auto theirs = [=](const Allocation& a) { return a.context == context && a.kind != Allocation::Kind::kPooled; };
    allocations().take_all(theirs, [](uint64_t pointer, const Allocation& a) { settle_freed(pointer, a); });
    arrays().take_all(theirs, [](uint64_t, const Allocation& a) { give_back(a.device, a.bytes); });
}

void forget_streams_of(CUcontext green) {
    streams_of_frees_are_gone(green);
    graph_streams_are_gone(green);
}

uint64_t memory_held(CUdevice device) {
    auto* held = held_on(device);
    return held ? held->load(std::memory_order_relaxed) : 0;
}

}  // namespace gemlet::hook
