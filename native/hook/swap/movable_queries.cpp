// Questions of other rooms about movable memory (memory/movable.h): the allocation of an address, and what is free.
#include <algorithm>

#include "hook/swap/reservation.h"

namespace gemlet::hook {

std::optional<SwapRange> swap_find(CUdeviceptr address) {
    std::unique_lock<std::mutex> lock;
    auto [space, r] = find_reservation(address, lock);
    if (!space) return std::nullopt;
    SwapRange range{r->start, r->asked, r->context, space->device.ordinal, r->id, r->sync_memops, r->pool};
    if (r->pieces) {
        const auto piece = r->pieces->find(address - r->start);
        if (!piece) return std::nullopt;
        range.start = r->start + piece->first;
        range.bytes = piece->second;
        range.id = r->id << 32 | piece->first;
    } else if (address - r->start >= r->asked) {
        return std::nullopt;
    }
    return range;
}

bool swap_set_sync_memops(CUdeviceptr address, bool on) {
    std::unique_lock<std::mutex> lock;
    auto [space, r] = find_reservation(address, lock);
    if (space) r->sync_memops = on;
    return space != nullptr;
}

uint64_t swap_free_bytes(CUdevice device, uint64_t free, uint64_t left) {
    SwapSpace* space = swap_space(device);
    if (!space || !space->managed()) return free;
    const uint64_t ceiling = space->page.load()->ceiling.load(std::memory_order_relaxed);
    std::lock_guard lock(space->mutex);
    // Without a ceiling: the group's resident limit no longer binds.
    if (ceiling == wire::kNoLimit) return free;
    return std::min(left, ceiling > space->movable ? ceiling - space->movable : 0);
}

void swap_hide(CUdevice device, uint64_t bytes) {
    SwapSpace* space = swap_space(device);
    if (!space) return;
    std::lock_guard lock(space->mutex);
    space->hidden += bytes;
    space->publish();
}

void swap_show(CUdevice device, uint64_t bytes) {
    SwapSpace* space = swap_space(device);
    if (!space) return;
    std::lock_guard lock(space->mutex);
    space->hidden -= std::min(bytes, space->hidden);  // room may be from before memory could move
    space->publish();
}

bool swap_make_room(CUdevice device, uint64_t bytes) {
    SwapSpace* space = swap_space(device);
    if (!space || !space->managed()) return true;
    return space->ask(wire::MessageType::kRoom, bytes) == wire::Admission::kGranted;
}

}  // namespace gemlet::hook
