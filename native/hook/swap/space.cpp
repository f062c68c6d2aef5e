// One device's movable memory: messages to the daemon, and how threads wait at the closed gate.
#include "hook/swap/space.h"

#include <algorithm>

#include "hook/link/connection.h"
#include "hook/link/version.h"
#include "hook/submit/current_context.h"
#include "hook/submit/token.h"

namespace gemlet::hook {

// More than any device has: the daemon decides how much memory may lie there, and another daemon may allow more.
// Chunks do not cross segments, so they take more space than their bytes.
constexpr uint64_t kArena = 1ull << 40;

SwapSpace::SwapSpace(Device& d, wire::ResidencyPage* p) : device(d), page(p), arena(kArena) {
    unmanaged.allowed = unmanaged.ceiling = wire::kNoLimit;
}

bool SwapSpace::all_resident() const {
    return std::all_of(chunks.begin(), chunks.end(), [](const Chunk* c) { return c->resident() || c->leaving; });
}

void SwapSpace::adopt_order() {
    wire::ResidencyPage& p = *page.load(std::memory_order_acquire);
    const uint32_t order = p.order.load(std::memory_order_acquire);
    if (order == 0) return;  // a daemon that has not spoken yet, or has gone, and it is not known whether for good
    limit = p.allowed.load(std::memory_order_acquire);
    p.seen.store(order, std::memory_order_release);
}

void SwapSpace::publish() {
    wire::ResidencyPage& p = *page.load(std::memory_order_acquire);
    p.movable.store(movable + announced + hidden);
    p.room.store(hidden);
    p.mapped.store(mapped);
    p.moved_out.store(moved_out);
    p.moved_in.store(moved_in);
    p.dropped.store(dropped);
    p.pinned.store(arena.taken_bytes());
    p.away.store(gate.closed() ? 1 : 0);
}

void SwapSpace::tell(wire::MessageType type, uint64_t value, uint32_t epoch, uint32_t flags) {
    wire::Message m{};
    m.header = header(type, device.wire_index.load(), epoch);
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
    page.load(std::memory_order_acquire)->away.store(1);  // from now on the token would be wasted on it
    gate.close();
}

wire::Admission SwapSpace::ask(wire::MessageType type, uint64_t value, uint32_t flags) {
    wire::ResidencyPage& p = *page.load(std::memory_order_acquire);
    if (&p == &unmanaged) return wire::Admission::kGranted;
    std::lock_guard lock(asking);
    const uint32_t number = ++request;
    tell(type, value, number, flags);
    const uint64_t since = now_ns();
    for (;;) {
        const uint32_t answered = p.answered.load(std::memory_order_acquire);
        if (answered == number) return wire::Admission(p.admission.load(std::memory_order_acquire));
        // Without a daemon there is no limit; make_reservation() tells the next daemon.
        if (page.load(std::memory_order_acquire) != &p) return wire::Admission::kGranted;
        // One that is silent has left what this process may have on the device; memory that cannot move is the
        // ledger's.
        const bool left = type == wire::MessageType::kRoom || value <= p.allowed.load(std::memory_order_relaxed);
        if (left && daemon_is_silent(device, since)) return wire::Admission::kGranted;
        futex_wait(p.answered, answered, 100'000'000);
        if (!connected()) lost();
    }
}

void SwapSpace::see_context() {
    const CUcontext context = current_device() == device.ordinal ? owning_context() : nullptr;
    if (!context) return;
    std::lock_guard lock(mutex);
    seen = context;
}

void SwapSpace::await_open() {
    constexpr uint64_t kAskAgain = 100'000'000;
    see_context();
    device.awaiting_memory.fetch_add(1);
    uint64_t looked = now_ns();
    while (gate.closed()) {
        if (driver_ends.load(std::memory_order_relaxed)) {  // nothing moves any more: the driver shall answer
            gate.open();
            break;
        }
        // A parked token may have been taken before the gate was checked.
        stop_holding(device, wire::StopReason::kIdle, 0);
        if (managed() && !asked.exchange(true)) tell(wire::MessageType::kRequest);
        // Request again after a while: the watcher may have reported the end of the turn, as idle, after the
        // request.
        if (const uint64_t rest = move_meanwhile(*this, kAskAgain)) gate.wait_for_change(rest);
        if (const uint64_t now = now_ns(); now - looked >= kAskAgain) {
            looked = now;
            asked.store(false);
            if (!has_context(*this)) break;  // who waits may be the one that has yet to make one
        }
        if (managed() && !connected()) lost();
    }
    device.awaiting_memory.fetch_sub(1);
}

void swap_await_open(MoveGate& gate) {
    gate.space().await_open();
}

}  // namespace gemlet::hook
