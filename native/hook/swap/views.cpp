// cuMemMap, cuMemUnmap and cuMemSetAccess of memory that moves.
//
// A mapping is made while all of the program's memory is on the device, so the driver itself says whether it may be
// where it is to be, and who may have access to it. It is removed wherever its content is.
#include "hook/swap/views.h"

#include <algorithm>
#include <set>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/swap/reservation.h"

namespace gemlet::hook {

namespace {

std::atomic<uint64_t> next_id{1};

// What is gone already is brought back.
void restore(SwapSpace& space) {
    if (!space.all_resident() && !space.gate.closed()) space.close_gate();
    space.publish();
    space.wake_mover();
}

bool is_of(const ChunkView& part, const View& view) {
    return part.access == &view.access;
}

void add_parts(Reservation& home, View& view, uint64_t offset) {
    for (auto& chunk : home.chunks) {
        const uint64_t at = chunk->address - home.start;
        const uint64_t from = std::max(at, offset), to = std::min(at + chunk->bytes, offset + view.bytes);
        if (from < to)
            chunk->views.push_back({.address = view.start + (from - offset),
                                    .offset = from - at,
                                    .bytes = to - from,
                                    .access = &view.access});
    }
}

void merge(std::vector<CUmemAccessDesc>& all, const CUmemAccessDesc& wanted) {
    const auto same = [&](const CUmemAccessDesc& d) {
        return d.location.type == wanted.location.type && d.location.id == wanted.location.id;
    };
    std::erase_if(all, same);
    if (wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) all.push_back(wanted);
}

void ask_driver(View& view, bool is_there) {
    view.reserved = view.start;
    view.reserved_bytes = view.bytes;
    if (!is_there) return;
    view.context_known = real::cuPointerGetAttribute(&view.context, CU_POINTER_ATTRIBUTE_CONTEXT, view.start);
    CUdeviceptr start = 0;
    size_t bytes = 0;
    const auto ask = [&](void* out, CUpointer_attribute which) {
        return real::cuPointerGetAttribute(out, which, view.start) == CUDA_SUCCESS;
    };
    if (!ask(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) || !ask(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE)) return;
    view.reserved = start;
    view.reserved_bytes = bytes;
}

// A piece of what one call is about: a view of this space, or what is between two and is not.
struct Piece {
    CUdeviceptr start;
    uint64_t bytes;
    bool is_view;
};

std::vector<Piece> pieces_of(SwapSpace& space, CUdeviceptr start, uint64_t bytes) {
    std::vector<Piece> pieces;
    CUdeviceptr at = start;
    for (const View* view : views_in(space, start, bytes)) {
        if (view->start > at) pieces.push_back({at, view->start - at, false});
        pieces.push_back({view->start, view->bytes, true});
        at = view->start + view->bytes;
    }
    if (at < start + bytes) pieces.push_back({at, start + bytes - at, false});
    return pieces;
}

bool others_have_views(const SwapSpace& space, CUdeviceptr start, uint64_t bytes) {
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* other = swap_space(device);
        if (!other || other == &space) continue;
        std::lock_guard lock(other->mutex);
        if (!views_in(*other, start, bytes).empty()) return true;
    }
    return false;
}

CUresult unmap_view(SwapSpace& space, CUdeviceptr start, uint64_t bytes) {
    std::lock_guard allocating(space.allocating);
    std::unique_lock lock(space.mutex);
    View* view = view_in(space, start);
    if (!view || view->start != start || view->bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    Created& created = *view->created;
    if (created.handles > 0 || created.views > 1) return remove_view(space, *view);
    return free_created(space, created, lock);
}

// To what is on the device; the rest has it when it comes.
CUresult set_access_to_parts(SwapSpace& space, const View& view, const CUmemAccessDesc* wanted, uint64_t count) {
    for (auto& chunk : space.reservations.at(view.created->home)->chunks)
        for (const ChunkView& part : chunk->views)
            if (is_of(part, view) && part.mapped)
                if (CUresult refused = real::cuMemSetAccess(part.address, part.bytes, wanted, count)) return refused;
    return CUDA_SUCCESS;
}

// What of the memory behind them would not move any more if another device had access to it.
uint64_t bytes_to_stay(const SwapSpace& space, const std::vector<View*>& views) {
    std::set<const Created*> all;
    for (const View* view : views) all.insert(view->created);
    uint64_t sum = 0;
    for (const Created* created : all) sum += more_would_stay(space, *created);
    return sum;
}

// Where no other space has views.
CUresult set_access(SwapSpace& space, CUdeviceptr start, uint64_t bytes, const CUmemAccessDesc* wanted,
                    uint64_t count) {
    const bool elsewhere = std::any_of(wanted, wanted + count, [&](const CUmemAccessDesc& d) {
        const bool own = d.location.type == CU_MEM_LOCATION_TYPE_DEVICE && d.location.id == space.device.ordinal;
        return !own && d.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    });
    const InsideGate inside(space);
    std::unique_lock allocating(space.allocating, std::defer_lock);
    if (elsewhere) allocating.lock();
    std::unique_lock lock(space.mutex);
    const auto views = views_in(space, start, bytes);
    if (elsewhere) {
        const uint64_t more = bytes_to_stay(space, views);
        lock.unlock();
        const bool may = may_stay(space, more);
        lock.lock();  // no view went meanwhile, which takes `allocating`
        if (!may) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const auto is_here = [&](const View* view) {
        const auto& chunks = space.reservations.at(view->created->home)->chunks;
        return std::all_of(chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk->resident(); });
    };
    if (elsewhere && !(inside && std::all_of(views.begin(), views.end(), is_here))) return CUDA_ERROR_NOT_SUPPORTED;
    if (inside) {
        if (CUresult refused = real::cuMemSetAccess(start, bytes, wanted, count)) return refused;
    } else {
        for (View* view : views)
            if (CUresult refused = set_access_to_parts(space, *view, wanted, count)) return refused;
    }
    for (View* view : views) {
        for (uint64_t i = 0; i < count; ++i) merge(view->access, wanted[i]);
        if (elsewhere) keep_here(space, *view->created);
    }
    return CUDA_SUCCESS;
}

// The space that has views there, with `mutex` held by `lock`.
SwapSpace* space_of(CUdeviceptr start, uint64_t bytes, std::unique_lock<std::mutex>& lock) {
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* space = swap_space(device);
        if (!space) continue;
        std::unique_lock held(space->mutex);
        if (views_in(*space, start, bytes).empty()) continue;
        lock = std::move(held);
        return space;
    }
    return nullptr;
}

bool all_within(SwapSpace& space, CUdeviceptr start, uint64_t bytes) {
    if (bytes > UINT64_MAX - start) return false;
    const auto views = views_in(space, start, bytes);
    return std::all_of(views.begin(), views.end(), [&](const View* v) { return is_within(*v, start, bytes); });
}

// Does `others(start, bytes)` to what is between the views there, and `ours(space, start, bytes)` to each of them. In
// this order, so that all stays as it was if the driver has nothing to do it to. Empty: there is no view.
template <class Ours, class Others>
std::optional<CUresult> for_each_piece(CUdeviceptr start, uint64_t bytes, Ours&& ours, Others&& others) {
    std::unique_lock<std::mutex> lock;
    SwapSpace* space = space_of(start, bytes, lock);
    if (!space) return std::nullopt;
    if (!all_within(*space, start, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const auto pieces = pieces_of(*space, start, bytes);
    lock.unlock();
    for (const auto& [at, length, is_view] : pieces) {
        if (is_view) continue;
        const auto result = for_each_piece(at, length, ours, others);
        if (CUresult failed = result ? *result : others(at, length)) return failed;
    }
    for (const auto& [at, length, is_view] : pieces)
        if (is_view)
            if (CUresult failed = ours(*space, at, length)) return failed;
    return CUDA_SUCCESS;
}

}  // namespace

View* view_in(SwapSpace& space, CUdeviceptr address) {
    const auto next = space.views.upper_bound(address);
    if (next == space.views.begin()) return nullptr;
    View& view = std::prev(next)->second;
    return address - view.start < view.bytes ? &view : nullptr;
}

std::vector<View*> views_in(SwapSpace& space, CUdeviceptr start, uint64_t bytes) {
    std::vector<View*> found;
    if (View* first = view_in(space, start)) found.push_back(first);
    for (auto next = space.views.upper_bound(start); next != space.views.end() && next->first - start < bytes; ++next)
        found.push_back(&next->second);
    return found;
}

bool is_within(const View& view, CUdeviceptr start, uint64_t bytes) {
    return view.start >= start && view.start - start <= bytes && view.bytes <= bytes - (view.start - start);
}

FoundView find_view(CUdeviceptr address, std::unique_lock<std::mutex>& lock) {
    SwapSpace* space = space_of(address, 1, lock);
    return {space, space ? view_in(*space, address) : nullptr};
}

CUresult add_view(SwapSpace& space, Created& created, CUdeviceptr start, uint64_t bytes, uint64_t offset) {
    View& view = space.views[start];
    view.start = start;
    view.bytes = bytes;
    view.created = &created;
    view.id = next_id.fetch_add(1);
    ++created.views;
    Reservation& home = *space.reservations.at(created.home);
    add_parts(home, view, offset);
    CUresult result = CUDA_SUCCESS;
    for (auto& chunk : home.chunks)  // what is away is mapped when it comes
        if (result == CUDA_SUCCESS && chunk->on_device()) result = bring(space, *chunk);
    if (result == CUDA_SUCCESS) {
        created.ever_mapped = true;
        ask_driver(view, home.chunks.front()->on_device());
        return result;
    }
    // If the driver does not take back what it has mapped, either, that stays mapped, and no more is to come.
    for (auto& chunk : home.chunks)
        std::erase_if(chunk->views, [&](const ChunkView& part) { return is_of(part, view) && !part.mapped; });
    remove_view(space, view);
    return result;
}

CUresult remove_view(SwapSpace& space, View& view) {
    Created& created = *view.created;
    CUresult result = CUDA_SUCCESS;
    const Reservation& home = *space.reservations.at(created.home);
    for (auto& chunk : home.chunks) {
        DeviceMemory driver(space.device.ordinal, *chunk, false);
        for (ChunkView& part : chunk->views)
            if (is_of(part, view) && result == CUDA_SUCCESS) result = Chunk::hide(driver, part);
    }
    if (result != CUDA_SUCCESS) {
        restore(space);
        return result;
    }
    for (auto& chunk : home.chunks)
        std::erase_if(chunk->views, [&](const ChunkView& part) { return is_of(part, view); });
    --created.views;
    space.views.erase(view.start);
    return result;
}

std::optional<CUresult> swap_map(CUdeviceptr start, uint64_t bytes, uint64_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long flags) {
    std::unique_lock<std::mutex> lock;
    // Over what moves there is no room, even if it is away just now.
    if (space_of(start, bytes, lock)) return CUDA_ERROR_INVALID_VALUE;
    auto [space, created] = find_created(handle, lock);
    if (!space) return std::nullopt;
    if (!created->moves()) {
        if (created->real) return std::nullopt;
        lock.unlock();
        if (CUresult failed = pin_created(handle)) return failed;
        return std::nullopt;
    }
    lock.unlock();
    space->see_context();
    const InsideGate inside(*space);
    lock = {};
    const FoundCreated again = find_created(handle, lock);
    if (again.created != created || !created->moves()) return CUDA_ERROR_INVALID_VALUE;  // another thread was faster
    const bool fits = bytes > 0 && offset < created->bytes && bytes <= created->bytes - offset;
    if (!fits || flags != 0 || start % kBlock != 0 || bytes % kBlock != 0 || offset % kBlock != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!views_in(*space, start, bytes).empty()) return CUDA_ERROR_INVALID_VALUE;
    if (space->reservations.at(created->home)->chunks.front()->leaving) return CUDA_ERROR_INVALID_VALUE;
    return add_view(*space, *created, start, bytes, offset);
}

std::optional<CUresult> swap_unmap(CUdeviceptr start, uint64_t bytes, CUresult (*others)(CUdeviceptr, size_t)) {
    return for_each_piece(start, bytes, unmap_view, others);
}

std::optional<CUresult> swap_set_access(CUdeviceptr start, uint64_t bytes, const CUmemAccessDesc* wanted,
                                        uint64_t count) {
    std::unique_lock<std::mutex> lock;
    SwapSpace* space = space_of(start, bytes, lock);
    if (!space) return std::nullopt;
    if (!all_within(*space, start, bytes)) return CUDA_ERROR_INVALID_VALUE;
    lock.unlock();
    // The driver answers for the whole, unless parts of it are behind different gates.
    if (!others_have_views(*space, start, bytes)) return set_access(*space, start, bytes, wanted, count);
    return for_each_piece(
        start, bytes,
        [&](SwapSpace& its, CUdeviceptr at, uint64_t length) { return set_access(its, at, length, wanted, count); },
        [&](CUdeviceptr at, uint64_t length) { return real::cuMemSetAccess(at, length, wanted, count); });
}

std::optional<unsigned long long> swap_access(CUdeviceptr address, const CUmemLocation& location) {
    std::unique_lock<std::mutex> lock;
    auto [space, view] = find_view(address, lock);
    if (!space) return std::nullopt;
    for (const CUmemAccessDesc& known : view->access)
        if (known.location.type == location.type && known.location.id == location.id) return known.flags;
    return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool swap_is_mapped(CUdeviceptr start, uint64_t bytes) {
    std::unique_lock<std::mutex> lock;
    return space_of(start, bytes, lock) != nullptr;
}

}  // namespace gemlet::hook
