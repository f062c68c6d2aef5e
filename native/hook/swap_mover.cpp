// The thread that moves memory, one a device. It compares what is on the device with what the daemon allows and does
// the next step towards it; nothing depends on how far an earlier attempt came.
#include "swap_mover.h"

#include <algorithm>

#include "own_calls.h"
#include "own_thread.h"
#include "streams.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kRestClosed = 2'000'000;  // looks again while programs wait
constexpr uint64_t kRestOpen = 250'000'000;
constexpr uint64_t kQuiet = 100'000'000;     // before anything is done ahead of need
constexpr uint64_t kRetryFirst = 1'000'000;  // after the driver refused something
constexpr uint64_t kRetryMost = 500'000'000;

std::atomic<Mover*> movers[kMaxDevices];

// A context to work in: where the memory was allocated. With `mutex`.
CUcontext any_context(SwapSpace& space) {
    return space.reservations.empty() ? nullptr : space.reservations.begin()->second->context;
}

// With `mutex`: programs may go on.
void open_gate(SwapSpace& space) {
    for (Chunk* chunk : space.chunks)
        if (!chunk->leaving) chunk->opened();
    space.opened_at = now_ns();
    space.gate.open();
    space.publish();
    space.tell(wire::MessageType::kMoved);
}

// Pinning takes the driver's lock for 10 ms and more, and a program that grows, or moves, needs it itself.
bool is_quiet(Mover& m, uint64_t movable) {
    const uint32_t order = m.space.page.load()->order.load(std::memory_order_relaxed);
    if (order != m.quiet_order || movable != m.quiet_movable) {
        m.quiet_order = order;
        m.quiet_movable = movable;
        m.quiet_since = now_ns();
    }
    return now_ns() - m.quiet_since >= kQuiet;
}

// Some of the host's side, before it is needed. With `using_driver`. How long to rest; 0: there is more to do.
uint64_t pin_ahead(Mover& m, CUcontext context, uint64_t movable, uint64_t rest) {
    SwapSpace& space = m.space;
    const bool quiet = is_quiet(m, movable);
    const auto offset = space.arena.to_pin(space.page.load()->host.load(std::memory_order_relaxed));
    if (!offset || !context) return rest;
    if (!quiet) return std::min(rest, kQuiet);
    ContextScope scope(m.streams.context ? m.streams.context : context);
    if (!scope.ok() || make_streams(m, context) != CUDA_SUCCESS) return rest;
    return space.arena.pin(*offset) ? 0 : rest;
}

// How long to rest; 0: there is more to do.
uint64_t move(Mover& m) {
    SwapSpace& space = m.space;
    std::unique_lock lock(space.mutex);
    const uint32_t seen_before = space.page.load()->seen.load(std::memory_order_relaxed);
    space.adopt_order();
    CUcontext context = any_context(space);
    const auto rest = [&] { return space.gate.closed() ? kRestClosed : kRestOpen; };
    const auto retry = [&] {
        m.retry = std::clamp(m.retry * 2, kRetryFirst, kRetryMost);
        return m.retry;
    };
    if (space.broken) {
        if (space.gate.closed()) space.gate.open();
        return kRestOpen;
    }
    const bool too_much = space.mapped > space.limit;
    if (!too_much && !space.gate.closed()) {
        space.publish();
        // That it keeps to the order is news for the daemon.
        if (space.page.load()->seen.load(std::memory_order_relaxed) != seen_before)
            space.tell(wire::MessageType::kMoved);
        const uint64_t movable = space.movable;
        lock.unlock();
        std::lock_guard using_driver(m.using_driver);
        return pin_ahead(m, context, movable, kRestOpen);
    }
    if (!context) {  // nothing is left to move
        if (space.gate.closed()) open_gate(space);
        return kRestOpen;
    }
    lock.unlock();
    std::lock_guard using_driver(m.using_driver);
    // Once there are streams their context is the one: kernels go to streams of their own context only, and what is
    // loaded goes away with it.
    ContextScope scope(m.streams.context ? m.streams.context : context);
    if (!scope.ok()) return retry();
    if (make_streams(m, context) != CUDA_SUCCESS) return retry();
    if (too_much) {
        if (!stop_program(m)) return launch_state.captures.load() != 0 ? kRestClosed : retry();
        m.fingerprinter.ready();  // loads its kernel the first time
        lock.lock();
        space.publish();
        space.tell(wire::MessageType::kMoved);
        CUresult result = move_out(m, lock);
        space.publish();
        space.tell(wire::MessageType::kMoved);
        lock.unlock();
        take_note(m, result);
        if (result != CUDA_SUCCESS) return retry();
        m.retry = 0;
        return 0;
    }
    lock.lock();
    CUresult result = move_in(m, lock);
    space.publish();
    if (result != CUDA_SUCCESS) {
        lock.unlock();
        take_note(m, result);
        return retry();
    }
    m.retry = 0;
    m.dead = 0;
    if (space.mapped > space.limit) return 0;
    if (space.all_resident()) {
        open_gate(space);
        return 0;
    }
    if (space.page.load()->seen.load(std::memory_order_relaxed) != seen_before) space.tell(wire::MessageType::kMoved);
    const uint64_t movable = space.movable, pause = rest();
    lock.unlock();
    return pin_ahead(m, context, movable, pause);
}

void* work(void* argument) {
    Mover& m = *static_cast<Mover*>(argument);
    begin_own_thread("gemlet-mover");
    for (;;) {
        wire::ResidencyPage& page = *m.space.page.load(std::memory_order_acquire);
        const uint32_t order = page.order.load(std::memory_order_acquire);
        const uint32_t nudges = m.space.nudges.load();
        const uint64_t rest = move(m);
        if (rest && nudges == m.space.nudges.load()) futex_wait(page.order, order, rest);
    }
    return nullptr;
}

}  // namespace

void start_mover(SwapSpace& space) {
    auto& slot = movers[space.device.ordinal];
    if (slot.load(std::memory_order_acquire)) return;
    auto* mover = new Mover(space);
    Mover* none = nullptr;
    if (!slot.compare_exchange_strong(none, mover)) {
        delete mover;
        return;
    }
    if (!start_own_thread(work, mover)) slot.store(nullptr);  // tried again
}

void forget_movers() {
    for (auto& slot : movers) slot.store(nullptr);
}

void forget_copies(SwapSpace& space, CUcontext context) {
    Mover* m = movers[space.device.ordinal].load(std::memory_order_acquire);
    if (!m) return;
    std::lock_guard using_driver(m->using_driver);
    if (m->streams.context != context) return;
    ContextScope scope(context);
    if (scope.ok()) destroy_streams(*m);
    m->fingerprinter.unload(scope.ok());
    m->streams = {};
    std::lock_guard lock(space.mutex);
    space.arena.context_gone();
}

}  // namespace gemlet::hook
