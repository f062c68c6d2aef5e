// Movable allocations: made, found and freed. What of them is on the device is the mover's business, except that an
// allocation takes its memory at once where the daemon's allowance has room.
#include "swap_space.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <utility>

#include "client.h"
#include "connection.h"
#include "context.h"
#include "driver.h"
#include "memory_books.h"
#include "memory_size.h"
#include "own_calls.h"
#include "reentry.h"
#include "say.h"
#include "token.h"

namespace gemlet::hook {

constinit std::atomic<bool> swap_in_use{false};

namespace {

std::array<std::atomic<SwapSpace*>, kMaxDevices> spaces;
std::atomic<uint64_t> next_id{1};

// The driver can do what moving takes, and the program did not say no.
bool able() {
    const OwnCalls& o = own();
    return o.cuMemAddressReserve && o.cuMemAddressFree && o.cuMemCreate && o.cuMemRelease && o.cuMemMap &&
           o.cuMemUnmap && o.cuMemSetAccess && o.cuMemHostRegister_v2 && o.cuMemcpyDtoHAsync_v2 &&
           o.cuMemcpyHtoDAsync_v2 && o.cuStreamCreate && o.cuStreamDestroy_v2 && o.cuStreamSynchronize &&
           o.cuEventSynchronize && o.cuCtxSynchronize;
}

struct Found {
    SwapSpace* space;
    Reservation* reservation;
};

// With `mutex` of the space that is returned held by `lock`.
Found find(CUdeviceptr address, std::unique_lock<std::mutex>& lock) {
    for (auto& slot : spaces) {
        SwapSpace* space = slot.load(std::memory_order_acquire);
        if (!space) continue;
        std::unique_lock held(space->mutex);
        auto next = space->reservations.upper_bound(address);
        if (next == space->reservations.begin()) continue;
        Reservation& r = *std::prev(next)->second;
        if (address - r.start >= r.bytes) continue;
        lock = std::move(held);
        return {space, &r};
    }
    return {nullptr, nullptr};
}

void explain(SwapSpace& space, wire::Admission why, uint64_t bytes) {
    constexpr double gib = 1 << 30;
    const char* group = destination().group;
    const double wanted = double(space.movable + bytes) / gib;
    const double ceiling = double(space.page.load()->ceiling.load(std::memory_order_relaxed)) / gib;
    switch (why) {
        case wire::Admission::kGranted:
            return;
        case wire::Admission::kResident:
            return say_once(
                Topic::kMemory,
                "group '%s' may have %.2f GiB on GPU %d at a time, and this process alone wants %.2f GiB\n"
                "  hint: raise it with `gemlet set %s --resident %.0fGiB`",
                group, ceiling, space.device.ordinal, wanted, group, wanted + 1);
        case wire::Admission::kCapacity:
            return say_once(Topic::kMemory,
                            "this process wants %.2f GiB on GPU %d, and no more than %.2f GiB of its capacity are "
                            "left for what can move\n  hint: raise `capacity` of the device in the configuration",
                            wanted, space.device.ordinal, ceiling);
        case wire::Admission::kHost:
            return say_once(Topic::kMemory,
                            "the host has no room for what would have to leave GPU %d if this process had %.2f GiB\n"
                            "  hint: raise `host_memory` in the configuration of the daemon, or run fewer programs",
                            space.device.ordinal, wanted);
    }
}

// Addresses for `bytes`, cut into chunks. With `mutex`.
CUresult reserve_chunks(SwapSpace& space, Reservation& r) {
    if (CUresult result = own().cuMemAddressReserve(&r.start, r.bytes, 0, 0, 0)) return result;
    for (uint64_t at = 0; at < r.bytes; at += kChunk) {
        auto chunk = std::make_unique<Chunk>();
        chunk->address = r.start + at;
        chunk->bytes = std::min(kChunk, r.bytes - at);
        space.movable += chunk->bytes;
        space.chunks.push_back(chunk.get());
        r.chunks.push_back(std::move(chunk));
    }
    return CUDA_SUCCESS;
}

// Gives back all of a reservation; its content is not needed any more. With `mutex`, which a copy under way lets go.
// A driver that refuses keeps its memory: then it stays in the books.
CUresult release_chunks(SwapSpace& space, Reservation& r, std::unique_lock<std::mutex>& lock) {
    CUresult result = CUDA_SUCCESS;
    for (auto& chunk : r.chunks) chunk->leaving = true;
    for (auto& chunk : r.chunks) {
        space.copied.wait(lock, [&] { return !chunk->busy; });
        chunk->discard();
        if (CUresult failed = vacate(space, *chunk)) result = failed;
    }
    if (result == CUDA_SUCCESS) result = own().cuMemAddressFree(r.start, r.bytes);
    if (result != CUDA_SUCCESS) {  // the program has it still, so the mover brings back what is gone already
        for (auto& chunk : r.chunks) chunk->leaving = false;
        if (!space.all_resident() && !space.gate.closed()) space.close_gate();
        space.wake_mover();
        return result;
    }
    for (auto& chunk : r.chunks) {
        if (chunk->slot != kNoSlot) space.arena.give(chunk->slot);
        space.movable -= chunk->bytes;
        std::erase(space.chunks, chunk.get());
    }
    r.chunks.clear();
    return CUDA_SUCCESS;
}

// Less is granted without asking: the daemon is only told.
void tell_less(SwapSpace& space) {
    space.publish();
    if (space.managed()) space.tell(wire::MessageType::kAdmit, space.movable);
}

// The daemon takes what is in the ledger and is not movable to be fixed, so that a little of it is said to be movable
// before it is charged, and until after it was given back.
class Announced {
  public:
    Announced(SwapSpace& space, uint64_t bytes) : space_(space), bytes_(bytes) {
        std::lock_guard lock(space_.mutex);
        total_ = space_.movable + bytes;
        space_.announced += bytes;
        space_.publish();
    }
    ~Announced() {
        std::lock_guard lock(space_.mutex);
        came_true();
        space_.publish();
    }
    Announced(const Announced&) = delete;
    Announced& operator=(const Announced&) = delete;

    uint64_t total() const { return total_; }                           // bytes there will be
    void came_true() { space_.announced -= std::exchange(bytes_, 0); }  // with `mutex`

  private:
    SwapSpace& space_;
    uint64_t bytes_, total_;
};

// A reservation with memory in it, charged and admitted.
CUresult make_reservation(SwapSpace& space, uint64_t asked, CUcontext context, Reservation*& made) {
    const uint64_t bytes = round_up(asked, kBlock);
    Announced announced(space, bytes);  // gone last: it takes `mutex`
    const wire::ResidencyPage* asked_there = space.page.load();
    if (!charge_movable(space.device.ordinal, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (wire::Admission why = space.ask(wire::MessageType::kAdmit, announced.total());
        why != wire::Admission::kGranted) {
        explain(space, why, bytes);
        give_back(space.device.ordinal, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::unique_lock lock(space.mutex);
    announced.came_true();
    auto r = std::make_unique<Reservation>();
    r->bytes = bytes;
    r->asked = asked;
    r->context = context;
    r->id = next_id.fetch_add(1);
    CUresult result = reserve_chunks(space, *r);
    if (result == CUDA_SUCCESS) {
        space.adopt_order();
        const bool open = !space.gate.closed();
        for (auto& chunk : r->chunks) {
            if (space.mapped + chunk->bytes > space.limit) break;  // the mover brings it when there is room
            result = bring(space, *chunk);
            if (result != CUDA_SUCCESS) break;
            if (open) chunk->opened();  // programs may write to it as soon as they know the address
        }
        if (result != CUDA_SUCCESS && release_chunks(space, *r, lock) != CUDA_SUCCESS) {
            // It can be neither used nor given back; what the driver holds of it stays charged.
            space.reservations[r->start] = std::move(r);
            space.publish();
            return result;
        }
    }
    if (result != CUDA_SUCCESS) {
        tell_less(space);
        lock.unlock();
        give_back(space.device.ordinal, bytes);
        return result;
    }
    made = r.get();
    space.reservations[r->start] = std::move(r);
    if (!space.all_resident() && !space.gate.closed()) space.close_gate();
    space.publish();
    // Another daemon than the one that was asked was told of less when it came.
    if (space.page.load() != asked_there && space.managed())
        space.tell(wire::MessageType::kAdmit, space.movable, 0, wire::kAdopt);
    start_mover(space);
    if (space.gate.closed()) space.wake_mover();
    return CUDA_SUCCESS;
}

CUresult free_reservation(SwapSpace& space, CUdeviceptr start, std::unique_lock<std::mutex>& lock) {
    Reservation& r = *space.reservations.at(start);
    const uint64_t bytes = r.bytes;
    if (CUresult failed = release_chunks(space, r, lock)) return failed;
    space.reservations.erase(start);
    lock.unlock();
    give_back(space.device.ordinal, bytes);
    lock.lock();
    tell_less(space);
    if (space.gate.closed()) space.wake_mover();  // it may have been the one that was missing
    return CUDA_SUCCESS;
}

CUresult allocate_small(SwapSpace& space, CUdeviceptr* pointer, uint64_t bytes, CUcontext context) {
    const uint64_t piece = round_up(bytes, kSmallUnit);
    const auto take = [&](Reservation& slab) {
        const auto at = slab.pieces->take(piece);
        if (at) *pointer = slab.start + *at;
        return at.has_value();
    };
    {
        std::lock_guard lock(space.mutex);
        for (auto& [start, r] : space.reservations)
            if (r->pieces && r->context == context && take(*r)) return CUDA_SUCCESS;
    }
    Reservation* slab = nullptr;
    if (CUresult failed = make_reservation(space, kBlock, context, slab)) return failed;
    std::lock_guard lock(space.mutex);
    slab->pieces = std::make_unique<Pieces>(slab->bytes);
    take(*slab);
    return CUDA_SUCCESS;
}

}  // namespace

SwapSpace* swap_space(CUdevice device) {
    if (device < 0 || device >= kMaxDevices) return nullptr;
    return spaces[size_t(device)].load(std::memory_order_acquire);
}

// --- the driver
// ------------------------------------------------------------------------------------------------------

CUresult DeviceMemory::create(uint64_t bytes, CUmemGenericAllocationHandle& handle) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    return own().cuMemCreate(&handle, bytes, &properties, 0);
}
CUresult DeviceMemory::map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) {
    return own().cuMemMap(address, bytes, 0, handle, 0);
}
CUresult DeviceMemory::allow(CUdeviceptr address, uint64_t bytes) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return own().cuMemSetAccess(address, bytes, &access, 1);
}
CUresult DeviceMemory::unmap(CUdeviceptr address, uint64_t bytes) {
    return own().cuMemUnmap(address, bytes);
}
CUresult DeviceMemory::release(CUmemGenericAllocationHandle handle) {
    return own().cuMemRelease(handle);
}

// The books say what is on the device before it is there, and until it is gone.
CUresult bring(SwapSpace& space, Chunk& chunk) {
    const bool had = chunk.has_handle;
    if (!had) {
        space.mapped += chunk.bytes;
        space.page.load()->mapped.store(space.mapped);
    }
    DeviceMemory driver(space.device.ordinal);
    CUresult result = chunk.prepare(driver);
    if (!chunk.has_handle) space.mapped -= chunk.bytes;
    return result;
}

CUresult vacate(SwapSpace& space, Chunk& chunk) {
    const bool had = chunk.has_handle;
    DeviceMemory driver(space.device.ordinal);
    CUresult result = chunk.vacate(driver);
    if (had && !chunk.has_handle) space.mapped -= chunk.bytes;
    return result;
}

// --- the space
// -------------------------------------------------------------------------------------------------------

SwapSpace::SwapSpace(Device& d, wire::ResidencyPage* p, const Attachment& attachment)
    : device(d), page(p), arena(attachment.arena, attachment.arena_bytes) {
    unmanaged.allowed = unmanaged.ceiling = wire::kNoLimit;
}

bool SwapSpace::all_resident() const {
    return std::all_of(chunks.begin(), chunks.end(), [](const Chunk* c) { return c->resident() || c->leaving; });
}

void SwapSpace::adopt_order() {
    wire::ResidencyPage& p = *page.load(std::memory_order_acquire);
    const uint32_t order = p.order.load(std::memory_order_acquire);
    if (order == 0 && &p != &unmanaged) return;  // a daemon that has not spoken yet
    limit = p.allowed.load(std::memory_order_acquire);
    p.seen.store(order, std::memory_order_release);
}

void SwapSpace::publish() {
    wire::ResidencyPage& p = *page.load(std::memory_order_acquire);
    p.movable.store(movable + announced);
    p.mapped.store(mapped);
    p.moved_out.store(moved_out);
    p.moved_in.store(moved_in);
    p.dropped.store(dropped);
    p.away.store(gate.closed() ? 1 : 0);
}

void SwapSpace::tell(wire::MessageType type, uint64_t value, uint32_t epoch, uint32_t flags) {
    wire::Message m{};
    m.header = {wire::kMagic, wire::kWireVersion, type, device.wire_index.load(), epoch};
    m.value = value;
    m.flags = flags;
    m.time_ns = now_ns();
    send(m);
}

void SwapSpace::wake_mover() {
    ++nudges;
    futex_wake_all(page.load(std::memory_order_acquire)->order);
}

void SwapSpace::close_gate() {
    asked.store(false);
    stopped = false;
    gate.close();
}

wire::Admission SwapSpace::ask(wire::MessageType type, uint64_t value) {
    wire::ResidencyPage& p = *page.load(std::memory_order_acquire);
    if (&p == &unmanaged) return wire::Admission::kGranted;
    std::lock_guard lock(asking);
    const uint32_t number = ++request;
    tell(type, value, number);
    for (;;) {
        const uint32_t answered = p.answered.load(std::memory_order_acquire);
        if (answered == number) return wire::Admission(p.admission.load(std::memory_order_acquire));
        // A daemon that is gone limits nothing; make_reservation() tells the next one.
        if (page.load(std::memory_order_acquire) != &p) return wire::Admission::kGranted;
        futex_wait(p.answered, answered, 100'000'000);
        if (!connected()) lost();
    }
}

void SwapSpace::await_open() {
    while (gate.closed()) {
        // A parked token may have been taken before the gate was looked at.
        stop_holding(device, wire::StopReason::kIdle, 0);
        if (managed() && !asked.exchange(true)) tell(wire::MessageType::kWant);
        gate.wait_for_change(100'000'000);
        if (managed() && !connected()) lost();
    }
}

void swap_await_open(SwapGate& gate) {
    gate.space().await_open();
}

// --- what happens around it ----------------------------------------------------------------------------------------

void swap_attached(Device& device, const Attachment& attachment) {
    if (device.ordinal < 0 || device.ordinal >= kMaxDevices) return;
    auto& slot = spaces[size_t(device.ordinal)];
    SwapSpace* space = slot.load();
    if (!attachment.residency) return;  // one that is there already goes on without limits of its own
    if (!space) {
        if (!able() || !attachment.arena) return;
        slot.store(space = new SwapSpace(device, attachment.residency, attachment));
        device.pacer.set_gate(&space->gate);
        swap_in_use.store(true, std::memory_order_release);
        return;
    }
    std::lock_guard lock(space->mutex);
    space->page.store(attachment.residency);
    space->limit = std::min(space->limit, space->mapped);  // until this daemon says more
    space->publish();
    space->asked = false;
    space->tell(wire::MessageType::kAdmit, space->movable, 0, wire::kAdopt);
    futex_wake_all(space->unmanaged.order);
}

void swap_lost(Device& device) {
    SwapSpace* space = swap_space(device.ordinal);
    if (!space) return;
    wire::ResidencyPage* before = space->page.exchange(&space->unmanaged);
    futex_wake_all(before->order);
    futex_wake_all(before->answered);
}

void swap_context_destroying(CUcontext context) {
    if (!swap_active()) return;
    for (auto& slot : spaces)
        if (SwapSpace* space = slot.load()) forget_copies(*space, context);
}

void swap_context_gone(CUcontext context) {
    if (!swap_active()) return;
    for (auto& slot : spaces) {
        SwapSpace* space = slot.load();
        if (!space) continue;
        std::lock_guard allocating(space->allocating);
        std::unique_lock lock(space->mutex);
        space->broken = false;  // with the context goes what was wrong with it
        std::vector<CUdeviceptr> theirs;
        for (auto& [start, r] : space->reservations)
            if (r->context == context) theirs.push_back(start);
        for (CUdeviceptr start : theirs) free_reservation(*space, start, lock);
    }
}

void swap_capture_begins() {
    if (!swap_active()) return;
    for (auto& slot : spaces)
        if (SwapSpace* space = slot.load())
            while (!space->gate.enter()) space->await_open();
}

void swap_capture_counted() {
    if (!swap_active()) return;
    for (auto& slot : spaces)
        if (SwapSpace* space = slot.load()) space->gate.leave();
}

// Nothing of it works in a forked child, and its locks may be held by nobody.
void swap_in_child() {
    swap_in_use.store(false);
    forget_movers();
    for (auto& slot : spaces) slot.store(nullptr);
}

// --- allocations ---------------------------------------------------------------------------------------------------

std::optional<CUresult> swap_allocate(CUdeviceptr* pointer, uint64_t bytes) {
    Reentry reentry;
    SwapSpace* space = reentry.nested() ? nullptr : swap_space(current_device());
    if (!space || !pointer || bytes == 0 || bytes >= kAbsurd) return std::nullopt;
    CUcontext context = current_context();
    std::lock_guard allocating(space->allocating);
    if (shares_slab(bytes)) return allocate_small(*space, pointer, bytes, context);
    Reservation* made = nullptr;
    CUresult result = make_reservation(*space, bytes, context, made);
    if (result == CUDA_SUCCESS) *pointer = made->start;
    return result;
}

std::optional<CUresult> swap_allocate_pitch(CUdeviceptr* pointer, size_t* pitch, uint64_t width, uint64_t height,
                                            unsigned element) {
    // Anything odd is for the driver to refuse.
    if (!pitch || width == 0 || height == 0 || width >= kAbsurd) return std::nullopt;
    if (element != 4 && element != 8 && element != 16) return std::nullopt;
    const uint64_t row = round_up(width, kPitchUnit);
    if (row >= kAbsurd / height) return std::nullopt;
    auto result = swap_allocate(pointer, row * height);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

std::optional<CUresult> swap_free(CUdeviceptr pointer) {
    Reentry reentry;
    if (reentry.nested() || pointer == 0) return std::nullopt;
    CUcontext context;
    {
        std::unique_lock<std::mutex> lock;
        auto [space, r] = find(pointer, lock);
        if (!space) return std::nullopt;
        const bool begins = r->pieces ? r->pieces->find(pointer - r->start).value_or(std::pair{~0ull, 0ull}).first ==
                                            pointer - r->start
                                      : pointer == r->start;
        if (!begins) return CUDA_ERROR_INVALID_VALUE;
        context = r->context;
    }
    // As the driver does: what runs may still use it. In a capture, or a dead context, this is what fails.
    {
        ContextScope scope(context);
        if (CUresult failed = own().cuCtxSynchronize()) return failed;
    }
    std::unique_lock<std::mutex> lock;
    Found found = find(pointer, lock);
    if (!found.space) return CUDA_ERROR_INVALID_VALUE;  // another thread was faster
    SwapSpace& space = *found.space;
    lock.unlock();
    std::lock_guard allocating(space.allocating);
    lock.lock();
    auto at = space.reservations.upper_bound(pointer);
    if (at == space.reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
    Reservation& r = *std::prev(at)->second;
    if (pointer - r.start >= r.bytes) return CUDA_ERROR_INVALID_VALUE;
    if (r.pieces) {
        if (!r.pieces->give(pointer - r.start)) return CUDA_ERROR_INVALID_VALUE;
        if (!r.pieces->empty()) return CUDA_SUCCESS;
    }
    return free_reservation(space, r.start, lock);
}

std::optional<SwapRange> swap_find(CUdeviceptr address) {
    std::unique_lock<std::mutex> lock;
    auto [space, r] = find(address, lock);
    if (!space) return std::nullopt;
    SwapRange range{r->start, r->asked, r->context, space->device.ordinal, r->id, r->sync_memops};
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
    auto [space, r] = find(address, lock);
    if (space) r->sync_memops = on;
    return space != nullptr;
}

uint64_t swap_free_bytes(CUdevice device, uint64_t free, uint64_t left) {
    SwapSpace* space = swap_space(device);
    if (!space || !space->managed()) return free;
    const uint64_t ceiling = space->page.load()->ceiling.load(std::memory_order_relaxed);
    std::lock_guard lock(space->mutex);
    // No ceiling: its group has a resident limit that no longer binds.
    if (ceiling == wire::kNoLimit) return free;
    return std::min(left, ceiling > space->movable ? ceiling - space->movable : 0);
}

void swap_hide(CUdevice device, int64_t bytes) {
    SwapSpace* space = swap_space(device);
    if (!space) return;
    std::lock_guard lock(space->mutex);
    space->announced += uint64_t(bytes);
    space->publish();
}

bool swap_make_room(CUdevice device, uint64_t bytes) {
    SwapSpace* space = swap_space(device);
    if (!space || !space->managed()) return true;
    return space->ask(wire::MessageType::kRoom, bytes) == wire::Admission::kGranted;
}

}  // namespace gemlet::hook
