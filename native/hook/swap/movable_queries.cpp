// Questions of other rooms about movable memory (memory/movable.h): the allocation of an address, and what is free.
#include <algorithm>

#include "hook/submit/current_context.h"
#include "hook/swap/reservation.h"
#include "hook/swap/views.h"

namespace gemlet::hook {

namespace {

std::optional<SwapRange> find_mapped(CUdeviceptr address) {
    std::unique_lock<std::mutex> lock;
    auto [space, view] = find_view(address, lock);
    if (!space) return std::nullopt;
    const CUdevice device = space->device.ordinal;
    constexpr uint64_t kOfMapped = 1ull << 62;  // nothing that was allocated has such a number
    SwapRange range{view->start,          view->bytes,       view->context, device,
                    view->id | kOfMapped, view->sync_memops, nullptr};
    range.created = true;
    range.block = view->created->id | kOfMapped;
    range.context_known = view->context_known;
    range.reserved = view->reserved;
    range.reserved_bytes = view->reserved_bytes;
    range.access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
    const CUdevice asking = current_device();
    for (const CUmemAccessDesc& access : view->access)
        if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            access.location.id == (asking < 0 ? device : asking))
            range.access = access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                               ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                               : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
    if (view->created->bytes <= kChunk)
        range.handle_types = unsigned(view->created->properties->requestedHandleTypes);
    return range;
}

}  // namespace

std::optional<SwapRange> swap_find(CUdeviceptr address) {
    std::unique_lock<std::mutex> lock;
    auto [space, r] = find_reservation(address, lock);
    if (!space) return find_mapped(address);
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
    if (auto [space, r] = find_reservation(address, lock); space) {
        r->sync_memops = on;
        return true;
    }
    auto [space, view] = find_view(address, lock);
    if (space) view->sync_memops = on;
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
