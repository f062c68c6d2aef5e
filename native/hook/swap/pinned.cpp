// Memory of cuMemCreate that stays on the device from now on, since something needs a handle of the driver's for it:
// an export, a multicast object, a sparse array. What one chunk backs is kept as it is. What takes more of them has
// no one handle, and another would need as much memory again; only before anything is in it can it be made anew.
// Memory to which another device has access stays as well, in however many chunks: work on that device passes no gate
// for it.
#include "hook/link/say.h"
#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/memory/accounting.h"
#include "hook/memory/virtual.h"
#include "hook/swap/admission.h"
#include "hook/swap/reservation.h"
#include "hook/swap/views.h"

namespace gemlet::hook {

namespace {

using Handle = CUmemGenericAllocationHandle;

CUresult refuse() {
    say_once(
        Topic::kMemory,
        "memory of cuMemCreate that can move to the host cannot be shared with other processes or devices once it "
        "is in use, if it is more than 64 MiB\n"
        "  hint: run the program in a group without --resident, on a device without `capacity`");
    return CUDA_ERROR_NOT_SUPPORTED;
}

// From now on it counts as what cannot move; the mover passes it by. With `mutex`.
void count_as_fixed(SwapSpace& space, Chunk& chunk) {
    if (chunk.stays) return;
    chunk.stays = true;
    if (chunk.slot != kNoSlot) space.arena.give(chunk.slot);
    chunk.slot = kNoSlot;
    space.mapped -= chunk.bytes;
    space.page.load()->mapped.store(space.mapped);  // first: for a moment it counts nowhere, and never twice
    space.movable -= chunk.bytes;
    std::erase(space.chunks, &chunk);
}

// The only chunk of a home becomes what the driver made for the program. With `allocating`: the daemon is told how
// much is left, which must not come behind what another thread asks it for. With `mutex`.
CUresult keep_chunk(SwapSpace& space, Created& created) {
    const auto home = space.reservations.find(created.home);
    Reservation& r = *home->second;
    Chunk& chunk = *r.chunks.front();
    if (!chunk.resident() || chunk.busy || chunk.leaving) return CUDA_ERROR_NOT_READY;  // the context is beyond help
    if (CUresult failed = own().cuMemUnmap(chunk.address, chunk.bytes)) return failed;
    own().cuMemAddressFree(r.start, r.bytes);  // else the addresses are lost
    std::vector<std::pair<CUdeviceptr, uint64_t>> mapped;
    std::erase_if(space.views, [&](const auto& entry) {
        const View& view = entry.second;
        if (view.created == &created) mapped.emplace_back(view.start, view.bytes);
        return view.created == &created;
    });
    created.real = chunk.handle;
    created.home = 0;
    created.views = 0;
    count_as_fixed(space, chunk);
    space.reservations.erase(home);
    const bool named = created.handles > 0;
    stays_from_now_on(named ? created.name() : 0, created.bytes, space.device.ordinal, mapped);
    if (!named) {
        real::cuMemRelease(created.real);  // its mappings hold on to it
        space.created.erase(created.name());
    }
    tell_less(space);
    return CUDA_SUCCESS;
}

// Without any lock: it may wait for room.
CUresult make_anew(SwapSpace& space, Handle handle) {
    std::unique_lock<std::mutex> lock;
    const auto [found, created] = find_created(handle, lock);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t bytes = created->bytes;
    const auto properties = created->properties;
    lock.unlock();
    const CUdevice device = space.device.ordinal;
    if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    Handle real = 0;
    if (CUresult failed = own().cuMemCreate(&real, bytes, properties.get(), 0)) {
        give_back(device, bytes);
        return failed;
    }
    lock = {};
    const FoundCreated again = find_created(handle, lock);
    if (again.created != created || created->real) {  // another thread was faster
        own().cuMemRelease(real);
        give_back(device, bytes);
        return again.created == created ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    created->real = real;
    stays_from_now_on(handle, bytes, device, {});
    return CUDA_SUCCESS;
}

// What nothing was ever in. With `mutex` held by `lock`, which is released.
CUresult empty_home(SwapSpace& space, Handle handle, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::lock_guard allocating(space.allocating);
    lock = {};
    const auto [found, created] = find_created(handle, lock);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (!created->moves()) return CUDA_SUCCESS;
    if (created->ever_mapped) return refuse();
    const CUdeviceptr home = created->home;
    if (CUresult failed = free_reservation(space, home, lock)) return failed;
    created->home = 0;
    lock.unlock();
    return CUDA_SUCCESS;
}

}  // namespace

uint64_t more_would_stay(const SwapSpace& space, const Created& created) {
    const bool stays = space.reservations.at(created.home)->chunks.front()->stays;  // another device has access to it
    return stays ? 0 : created.bytes;
}

bool may_stay(SwapSpace& space, uint64_t bytes) {
    if (bytes == 0) return true;
    if (space.ask(wire::MessageType::kRoom, bytes, wire::kWouldStay) == wire::Admission::kGranted) return true;
    say_once(Topic::kMemory,
             "memory of cuMemCreate that is shared with other processes or devices stays on GPU %d, and if %.2f GiB "
             "more did, another program's memory would not fit there any more\n"
             "  hint: share less, or give the programs more room (`capacity`, --resident)",
             space.device.ordinal, double(bytes) / (1 << 30));
    return false;
}

void keep_here(SwapSpace& space, Created& created) {
    for (auto& chunk : space.reservations.at(created.home)->chunks) count_as_fixed(space, *chunk);
    tell_less(space);
}

CUresult pin_created(Handle handle) {
    std::unique_lock<std::mutex> lock;
    auto [space, created] = find_created(handle, lock);
    if (!space || created->real) return CUDA_SUCCESS;
    if (!created->moves()) {
        lock.unlock();
        return make_anew(*space, handle);
    }
    if (space->reservations.at(created->home)->chunks.size() > 1) {
        if (created->ever_mapped) return refuse();
        if (CUresult failed = empty_home(*space, handle, lock)) return failed;
        if (lock) lock.unlock();
        return make_anew(*space, handle);
    }
    const uint64_t bytes = more_would_stay(*space, *created);
    lock.unlock();
    const InsideGate inside(*space);
    std::lock_guard allocating(space->allocating);
    if (!may_stay(*space, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    lock = {};
    const FoundCreated again = find_created(handle, lock);
    if (!again.space) return CUDA_ERROR_INVALID_VALUE;
    return again.created->moves() ? keep_chunk(*space, *again.created) : CUDA_SUCCESS;
}

CUresult swap_pin(CUmemGenericAllocationHandle& handle) {
    if (CUresult failed = pin_created(handle)) return failed;
    handle = swap_real(handle);
    return CUDA_SUCCESS;
}

CUresult swap_pin_range(CUdeviceptr start, uint64_t bytes) {
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* space = swap_space(device);
        if (!space) continue;
        std::unique_lock lock(space->mutex);
        if (views_in(*space, start, bytes).empty()) continue;
        lock.unlock();
        const InsideGate inside(*space);
        std::lock_guard allocating(space->allocating);
        lock.lock();
        for (auto views = views_in(*space, start, bytes); !views.empty(); views = views_in(*space, start, bytes)) {
            Created& created = *views.front()->created;
            if (space->reservations.at(created.home)->chunks.size() > 1) return refuse();
            const uint64_t more = more_would_stay(*space, created);
            lock.unlock();
            const bool may = may_stay(*space, more);
            lock.lock();  // no view went meanwhile, which takes `allocating`
            if (!may) return CUDA_ERROR_OUT_OF_MEMORY;
            if (CUresult failed = keep_chunk(*space, created)) return failed;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace gemlet::hook
