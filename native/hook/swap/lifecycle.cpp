// Events around movable memory: daemons come and go, contexts end, captures begin, the process forks.
#include <algorithm>
#include <array>

#include "hook/link/connection.h"
#include "hook/link/say.h"
#include "hook/lookup/own_calls.h"
#include "hook/submit/swap_events.h"
#include "hook/swap/reservation.h"

namespace gemlet::hook {

constinit std::atomic<bool> swap_in_use{false};
constinit std::atomic<int> swap_devices{0};

namespace {

std::array<std::atomic<SwapSpace*>, kMaxDevices> spaces;

// Of devices whose memory does not move: what goes to them may touch memory of others that does.
MoveGate always_open{nullptr};

// True if the driver has all calls that moving takes, and the program did not forbid it.
bool able() {
    const OwnCalls& o = own();
    return o.cuMemAddressReserve && o.cuMemAddressFree && o.cuMemCreate && o.cuMemRelease && o.cuMemMap &&
           o.cuMemUnmap && o.cuMemSetAccess && o.cuMemHostRegister_v2 && o.cuMemHostUnregister &&
           o.cuMemcpyDtoHAsync_v2 && o.cuMemcpyHtoDAsync_v2 && o.cuStreamCreate && o.cuStreamDestroy_v2 &&
           o.cuStreamSynchronize && o.cuEventSynchronize && o.cuCtxSynchronize;
}

}  // namespace

SwapSpace* swap_space(CUdevice device) {
    if (device < 0 || device >= kMaxDevices) return nullptr;
    return spaces[size_t(device)].load(std::memory_order_acquire);
}

void swap_attached(Device& device, const Attachment& attachment) {
    if (device.ordinal < 0 || device.ordinal >= kMaxDevices) return;
    auto& slot = spaces[size_t(device.ordinal)];
    SwapSpace* space = slot.load();
    if (!attachment.residency) return;  // one that is there already goes on without limits of its own
    if (!space) {
        auto made = std::make_unique<SwapSpace>(device, attachment.residency);
        // None of it can move then, and it still waits for room before it grows.
        made->moves = able() && made->arena;
        if (!made->arena)
            say_once(Topic::kMemory,
                     "no addresses are left for the host's side of GPU %d's memory, so none of it can move\n"
                     "  hint: raise the limit of addresses (ulimit -v)",
                     device.ordinal);
        slot.store(space = made.release());
        swap_devices.fetch_add(1);
        device.pacer.set_gate(&space->gate);
        swap_in_use.store(true, std::memory_order_release);
        for (CUdevice ordinal = 0; ordinal < kMaxDevices; ++ordinal)
            if (Device* other = device_in_use(ordinal); other && other != &device) swap_device_made(*other);
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

void swap_device_made(Device& device) {
    if (swap_active() && !swap_space(device.ordinal)) device.pacer.set_gate(&always_open);
}

void swap_lost(Device& device) {
    SwapSpace* space = swap_space(device.ordinal);
    if (!space) return;
    space->unmanaged.order.store(0);
    wire::ResidencyPage* before = space->page.exchange(&space->unmanaged);
    futex_wake_all(before->order);
    futex_wake_all(before->answered);
}

void swap_alone(Device& device) {
    SwapSpace* space = swap_space(device.ordinal);
    if (!space || space->managed() || space->unmanaged.order.exchange(1) != 0) return;
    futex_wake_all(space->unmanaged.order);
}

void swap_tend(Device& device) {
    if (!swap_active()) return;
    if (SwapSpace* space = swap_space(device.ordinal)) retry_mover(*space);
}

void swap_context_destroying(CUcontext context) {
    if (!swap_active()) return;
    for (auto& slot : spaces)
        if (SwapSpace* space = slot.load()) forget_copies(*space, context);
}

void swap_context_stays(CUcontext context) {
    if (!swap_active()) return;
    for (auto& slot : spaces)
        if (SwapSpace* space = slot.load()) context_went(*space, context);
}

void swap_context_gone(CUcontext context) {
    if (!swap_active()) return;
    for (auto& slot : spaces) {
        SwapSpace* space = slot.load();
        if (!space) continue;
        std::lock_guard allocating(space->allocating);
        std::unique_lock lock(space->mutex);
        space->broken = false;  // with the context goes what was wrong with it
        forget_freed(*space, context);
        if (space->seen == context) space->seen = nullptr;
        std::vector<CUdeviceptr> theirs;
        for (auto& [start, r] : space->reservations)
            if (r->context == context) theirs.push_back(start);
        for (CUdeviceptr start : theirs) free_reservation(*space, start, lock);
        lock.unlock();
        context_went(*space, context);  // once nothing names it any more
    }
}

std::optional<uint64_t> swap_enter_others(MoveGate& entered) {
    static_assert(kMaxDevices <= 64);
    uint64_t others = 0;
    for (size_t i = 0; i < spaces.size(); ++i) {
        SwapSpace* space = spaces[i].load(std::memory_order_acquire);
        if (!space || &space->gate == &entered) continue;
        if (space->gate.enter()) {
            others |= 1ull << i;
            continue;
        }
        // A thread must not wait at one gate inside another: two movers would wait for each other.
        swap_leave_others(others);
        entered.leave();
        space->await_open();
        return std::nullopt;
    }
    return others;
}

void swap_leave_others(uint64_t others) {
    for (size_t i = 0; i < spaces.size(); ++i)
        if (others >> i & 1) spaces[i].load()->gate.leave();
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

// None of it works in a forked child, and its locks may be held by threads that do not exist there.
void swap_in_child() {
    swap_in_use.store(false);
    swap_devices.store(0);
    forget_movers();
    for (auto& slot : spaces) slot.store(nullptr);
}

}  // namespace gemlet::hook
