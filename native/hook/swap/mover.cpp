// The thread that moves memory, one a device. It compares what is on the device with what the daemon allows and does
// the next step towards it; nothing depends on how far an earlier attempt came.
#include "hook/swap/mover.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "hook/link/say.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/own_thread.h"
#include "hook/memory/context.h"
#include "hook/submit/streams.h"
#include "hook/swap/stream_ordered.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kRestClosed = 2'000'000;  // looks again while programs wait
constexpr uint64_t kRestOpen = 250'000'000;
constexpr uint64_t kBetween = 100'000;       // somebody may wait for `using_driver`
constexpr uint64_t kRetryFirst = 1'000'000;  // after the driver refused something
constexpr uint64_t kRetryMost = 500'000'000;

std::atomic<Mover*> movers[kMaxDevices];

// A context to work in: one in which memory was allocated, or for memory of no context one in which the program
// works, or that it has at all. With `mutex`.
template <class WillDo>
CUcontext find_context(SwapSpace& space, WillDo&& will_do) {
    for (const auto& [start, r] : space.reservations)
        if (r->context && will_do(r->context)) return r->context;
    if (space.seen && will_do(space.seen)) return space.seen;
    for (const CUcontext context : space.device.pacer.contexts())
        if (context && will_do(context)) return context;
    const CUcontext other = some_context(space.device.ordinal);
    return other && will_do(other) ? other : nullptr;
}

// With `using_driver` and `mutex`. A context that is being destroyed does not count: streams made in it now would be
// named for ever.
CUcontext any_context(const Mover& m) {
    if (m.space.reservations.empty()) return nullptr;
    return find_context(m.space, [&](CUcontext context) { return !m.going.contains(context); });
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

uint64_t rest_after_refusal(Mover& m) {
    m.retry = std::clamp(m.retry * 2, kRetryFirst, kRetryMost);
    return m.retry;
}

// The number of the order that the client last said it follows.
uint32_t order_seen(const SwapSpace& space) {
    return space.page.load()->seen.load(std::memory_order_relaxed);
}

// With `mutex`: the daemon waits for the client to follow a new order, also where nothing has to move for it.
void tell_if_order_is_new(SwapSpace& space, uint32_t seen_before) {
    if (order_seen(space) != seen_before) space.tell(wire::MessageType::kMoved);
}

// With `mutex`.
void publish_and_tell(SwapSpace& space) {
    space.publish();
    space.tell(wire::MessageType::kMoved);
}

// While the program runs on: the host memory for what will move, because making it takes longer than copying, and
// because the program must not stop if the system has no memory. Returns how long to rest; no value: there is enough.
std::optional<uint64_t> prepare_host(Mover& m, uint64_t bytes) {
    SwapSpace& space = m.space;
    if (launch_state.captures.load() != 0) return kRestClosed;
    const auto offset = space.arena.to_pin(bytes);
    if (!offset) return std::nullopt;
    const CUresult result = space.arena.pin(*offset);
    if (result == CUDA_SUCCESS) return kBetween;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) say_no_memory(space);
    return rest_after_refusal(m);
}

// More is on the device than allowed: `bytes` of host memory, then the program stops, then chunks leave. In a
// context.
uint64_t step_out(Mover& m, uint64_t bytes) {
    SwapSpace& space = m.space;
    if (!space.gate.closed())
        if (const auto rest = prepare_host(m, bytes)) return *rest;
    if (!stop_program(m)) return launch_state.captures.load() != 0 ? kRestClosed : rest_after_refusal(m);
    m.fingerprinter.ready();  // loads its kernel the first time
    std::unique_lock lock(space.mutex);
    publish_and_tell(space);
    const CUresult result = move_out(m, lock);
    publish_and_tell(space);
    lock.unlock();
    take_note(m, result);
    if (result != CUDA_SUCCESS) return rest_after_refusal(m);
    m.retry = 0;
    return 0;
}

// The program is stopped, and there may be room: chunks come back, and once all are here it goes on. In a context.
uint64_t step_in(Mover& m, CUcontext context, uint64_t movable, uint32_t seen_before) {
    SwapSpace& space = m.space;
    std::unique_lock lock(space.mutex);
    const CUresult result = move_in(m, lock);
    space.publish();
    if (result != CUDA_SUCCESS) {
        lock.unlock();
        take_note(m, result);
        return rest_after_refusal(m);
    }
    m.retry = 0;
    m.dead = 0;
    if (space.mapped > space.limit) return 0;
    if (space.all_resident()) {
        open_gate(space);
        return 0;
    }
    tell_if_order_is_new(space, seen_before);
    const uint64_t rest = space.gate.closed() ? kRestClosed : kRestOpen;
    lock.unlock();
    return tend_host_side(m, context, movable, rest);
}

// Decides what to do next, and does it. Returns how long to rest; 0: there is more to do.
uint64_t next_step(Mover& m) {
    if (is_barred()) return kRestOpen;
    SwapSpace& space = m.space;
    std::lock_guard using_driver(m.using_driver);
    std::unique_lock lock(space.mutex);
    const uint32_t seen_before = order_seen(space);
    space.adopt_order();
    const CUcontext context = any_context(m);
    const uint64_t movable = space.movable;
    if (space.broken) {
        if (space.gate.closed()) space.gate.open();
        return kRestOpen;
    }
    const bool too_much = space.mapped > space.limit;
    if (!too_much && !space.gate.closed()) {
        space.publish();
        tell_if_order_is_new(space, seen_before);
        lock.unlock();
        // Memory of cuMemAlloc that cuMemFreeAsync freed: no later call of the program need come across it.
        if (context && m.going.empty()) {
            ContextScope scope(context);
            if (scope.ok()) release_unpooled(space);
        }
        return tend_host_side(m, context, movable, kRestOpen);
    }
    if (!context) {
        if (!space.reservations.empty()) return kRestClosed;  // their contexts are being destroyed
        if (space.gate.closed()) open_gate(space);            // nothing is left to move
        return kRestOpen;
    }
    const uint64_t to_go = too_much ? std::min(host_side(space.mapped - space.limit), movable) : 0;
    lock.unlock();
    // Once there are streams, their context is used: kernels can go only to streams of their own context, and
    // loaded modules go away with it.
    ContextScope scope(m.streams.context ? m.streams.context : context);
    if (!scope.ok()) return rest_after_refusal(m);
    if (make_streams(m, context) != CUDA_SUCCESS) return rest_after_refusal(m);
    return too_much ? step_out(m, to_go) : step_in(m, context, movable, seen_before);
}

void* work(void* argument) {
    Mover& m = *static_cast<Mover*>(argument);
    begin_own_thread("gemlet-mover");
    for (;;) {
        wire::ResidencyPage& page = *m.space.page.load(std::memory_order_acquire);
        const uint32_t order = page.order.load(std::memory_order_acquire);
        const uint32_t nudges = m.space.nudges.load();
        const uint64_t rest = next_step(m);
        if (rest && nudges == m.space.nudges.load()) futex_wait(page.order, order, rest);
    }
    return nullptr;
}

// Limits of processes, and those of a control group, may refuse one for a moment or for good, and others wait for
// this memory: any thread that comes by tries again.
bool has_thread(Mover& m) {
    if (m.has_thread.exchange(true)) return true;
    if (start_own_thread(work, &m)) return true;
    m.has_thread = false;
    say_once(Topic::kHost,
             "the system allows this process no thread to move its memory: what it has on GPU %d stays there, while "
             "others wait, until there is one\n"
             "  hint: see its limits (ulimit -u, pids.max of its control group)",
             m.space.device.ordinal);
    return false;
}

}  // namespace

void start_mover(SwapSpace& space) {
    auto& slot = movers[space.device.ordinal];
    Mover* m = slot.load(std::memory_order_acquire);
    if (!m) {
        auto made = std::make_unique<Mover>(space);
        if (slot.compare_exchange_strong(m, made.get())) m = made.release();
    }
    has_thread(*m);
}

void retry_mover(SwapSpace& space) {
    if (Mover* m = movers[space.device.ordinal].load(std::memory_order_acquire)) has_thread(*m);
}

uint64_t move_meanwhile(SwapSpace& space, uint64_t at_most_ns) {
    Mover* m = movers[space.device.ordinal].load(std::memory_order_acquire);
    if (!m || has_thread(*m)) return at_most_ns;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    own().cuThreadExchangeStreamCaptureMode(&mode);
    const uint64_t rest = next_step(*m);
    own().cuThreadExchangeStreamCaptureMode(&mode);
    return std::min(rest, at_most_ns);
}

bool has_context(SwapSpace& space) {
    std::lock_guard lock(space.mutex);
    return find_context(space, [](CUcontext) { return true; }) != nullptr;
}

void forget_movers() {
    for (auto& slot : movers) slot.store(nullptr);
}

void forget_copies(SwapSpace& space, CUcontext context) {
    Mover* m = movers[space.device.ordinal].load(std::memory_order_acquire);
    if (!m) return;
    std::lock_guard using_driver(m->using_driver);
    m->going.insert(context);
    m->sync.context_goes(context);
    if (m->streams.context != context) return;
    ContextScope scope(context);
    if (scope.ok()) destroy_streams(*m);
    m->fingerprinter.unload(scope.ok());
    m->streams = {};
    space.arena.context_goes(scope.ok());
}

void context_went(SwapSpace& space, CUcontext context) {
    Mover* m = movers[space.device.ordinal].load(std::memory_order_acquire);
    if (!m) return;
    std::lock_guard using_driver(m->using_driver);
    m->going.erase(context);
}

}  // namespace gemlet::hook
