// The thread that moves memory, one a device. It compares what is on the device with what the daemon allows and does
// the next step towards it; nothing depends on how far an earlier attempt came.
//
// Copies go through a bounded window: while some are under way, the memory of those that are done is given back (or
// that of the next is made), so that the link is kept busy, and on the other side the next program's memory can come
// in meanwhile.
#include <algorithm>
#include <deque>

#include "client.h"
#include "connection.h"
#include "own_calls.h"
#include "own_thread.h"
#include "streams.h"
#include "swap_space.h"
#include "token.h"

namespace gemlet::hook {

namespace {

constexpr size_t kWindow = 4;                   // copies under way
constexpr uint64_t kLeaveTime = 5'000'000'000;  // for threads inside the gate, and for what they launched
constexpr uint64_t kRestClosed = 2'000'000;     // looks again while programs wait
constexpr uint64_t kRestOpen = 250'000'000;
constexpr uint64_t kRetryFirst = 1'000'000;  // after the driver refused something
constexpr uint64_t kRetryMost = 500'000'000;
constexpr int kDeadAfter = 5;  // synchronisations in a row that fail: the context is dead

struct Streams {
    CUcontext context = nullptr;
    CUstream out = nullptr, in = nullptr;
    std::vector<CUevent> events;
};

// One mover's own state. `using_driver` is held while it works, so that a context is not destroyed under it.
struct Mover {
    explicit Mover(SwapSpace& s) : space(s) {}
    SwapSpace& space;
    std::mutex using_driver;
    Streams streams;
    uint64_t retry = 0;  // rest after a refusal; doubles
    int dead = 0;
};

std::atomic<Mover*> movers[kMaxDevices];

struct Copy {
    Chunk* chunk;
    CUevent event;
};

CUresult ready(Mover& m, CUcontext context) {
    if (m.streams.context) return CUDA_SUCCESS;
    Streams s;
    CUresult result = own().cuStreamCreate(&s.out, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) result = own().cuStreamCreate(&s.in, CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; result == CUDA_SUCCESS && i < kWindow; ++i) {
        CUevent event = nullptr;
        result = own().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
        if (result == CUDA_SUCCESS) s.events.push_back(event);
    }
    if (result != CUDA_SUCCESS) {
        for (CUevent event : s.events) own().cuEventDestroy_v2(event);
        if (s.in) own().cuStreamDestroy_v2(s.in);
        if (s.out) own().cuStreamDestroy_v2(s.out);
        return result;
    }
    s.context = context;
    m.streams = std::move(s);
    return CUDA_SUCCESS;
}

// A context to work in: where the memory was allocated. With `mutex`.
CUcontext any_context(SwapSpace& space) {
    return space.reservations.empty() ? nullptr : space.reservations.begin()->second->context;
}

// Nothing of this process runs on the device any more. Not called while somebody captures.
CUresult drain(Mover& m) {
    const uint64_t end = now_ns() + kLeaveTime;
    while (m.space.device.pacer.poll() > 0) {  // bounds the wait below: a kernel that never ends must not hold us
        if (now_ns() > end) return CUDA_ERROR_NOT_READY;
        sleep_ns(20'000);
    }
    std::vector<CUcontext> contexts = m.space.device.pacer.contexts();
    {
        std::lock_guard lock(m.space.mutex);
        for (auto& [start, r] : m.space.reservations) contexts.push_back(r->context);
    }
    std::sort(contexts.begin(), contexts.end());
    contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
    for (CUcontext context : contexts) {
        ContextScope scope(context);
        if (!scope.ok()) continue;
        if (CUresult failed = own().cuCtxSynchronize()) return failed;
    }
    return CUDA_SUCCESS;
}

// The next chunk to go: what costs nothing first, then from the end, so that it is the same ones each time.
Chunk* next_to_go(SwapSpace& space) {
    Chunk* best = nullptr;
    for (auto c = space.chunks.rbegin(); c != space.chunks.rend(); ++c) {
        Chunk* chunk = *c;
        if (!chunk->on_device() || chunk->busy || chunk->leaving) continue;
        if (!best || chunk->eviction_class() < best->eviction_class()) best = chunk;
    }
    return best;
}

Chunk* next_to_come(SwapSpace& space) {
    for (Chunk* chunk : space.chunks)
        if (!chunk->resident() && !chunk->busy && !chunk->leaving) return chunk;
    return nullptr;
}

CUresult start_copy(Mover& m, Chunk& chunk, bool out, CUevent event) {
    CUstream stream = out ? m.streams.out : m.streams.in;
    char* host = m.space.arena.at(chunk.slot);
    CUresult result = out ? own().cuMemcpyDtoHAsync_v2(host, chunk.address, chunk.bytes, stream)
                          : own().cuMemcpyHtoDAsync_v2(chunk.address, host, chunk.bytes, stream);
    if (result == CUDA_SUCCESS) result = own().cuEventRecord(event, stream);
    if (result == CUDA_SUCCESS) {
        chunk.busy = true;
        return result;
    }
    own().cuStreamSynchronize(stream);  // a copy nobody waits for must not go on into memory that is gone
    return result;
}

// Waits for the oldest copy of the window; then, with `mutex`, `done(chunk)` unless it failed.
template <class Done>
CUresult finish_copy(Mover& m, std::deque<Copy>& window, std::unique_lock<std::mutex>& lock, bool out, Done&& done) {
    Copy copy = window.front();
    window.pop_front();
    lock.unlock();
    CUresult result = own().cuEventSynchronize(copy.event);
    if (result != CUDA_SUCCESS) own().cuStreamSynchronize(out ? m.streams.out : m.streams.in);
    lock.lock();
    copy.chunk->busy = false;
    m.streams.events.push_back(copy.event);
    if (result == CUDA_SUCCESS) done(*copy.chunk);
    m.space.copied.notify_all();
    return result;
}

CUevent take_event(Mover& m) {
    CUevent event = m.streams.events.back();
    m.streams.events.pop_back();
    return event;
}

// Moves out until no more than the allowance is on the device. The gate is closed and nothing runs.
CUresult move_out(Mover& m, std::unique_lock<std::mutex>& lock) {
    SwapSpace& space = m.space;
    std::deque<Copy> window;
    CUresult result = CUDA_SUCCESS;
    uint64_t leaving = 0;  // bytes of the copies under way
    const auto give_up = [&](Chunk& chunk) {
        const bool copied = chunk.content;
        CUresult failed = vacate(space, chunk);
        if (failed == CUDA_SUCCESS && !copied) space.dropped += chunk.bytes;
        if (failed != CUDA_SUCCESS) result = failed;
    };
    while (result == CUDA_SUCCESS) {
        space.adopt_order();
        Chunk* chunk = space.mapped > space.limit + leaving ? next_to_go(space) : nullptr;
        if (chunk && chunk->may_vacate()) {
            give_up(*chunk);
            continue;
        }
        if (chunk && window.size() < kWindow) {
            if (chunk->slot == kNoSlot) {
                const auto slot = space.arena.take(chunk->bytes);
                if (!slot) {
                    result = CUDA_ERROR_OUT_OF_MEMORY;
                    break;
                }
                chunk->slot = *slot;
            }
            CUevent event = take_event(m);
            result = start_copy(m, *chunk, true, event);
            if (result != CUDA_SUCCESS) {
                m.streams.events.push_back(event);
                break;
            }
            leaving += chunk->bytes;
            window.push_back({chunk, event});
            continue;
        }
        if (window.empty()) break;
        leaving -= window.front().chunk->bytes;
        CUresult failed = finish_copy(m, window, lock, true, [&](Chunk& done) {
            done.copied();
            space.moved_out += done.bytes;
            if (!done.leaving) give_up(done);
        });
        if (failed != CUDA_SUCCESS) result = failed;
        space.publish();
        space.tell(wire::MessageType::kMoved);
    }
    while (!window.empty()) {
        CUresult failed = finish_copy(m, window, lock, true, [&](Chunk& done) {
            done.copied();
            space.moved_out += done.bytes;
        });
        if (failed != CUDA_SUCCESS && result == CUDA_SUCCESS) result = failed;
    }
    return result;
}

// Brings in what the allowance has room for.
CUresult move_in(Mover& m, std::unique_lock<std::mutex>& lock) {
    SwapSpace& space = m.space;
    std::deque<Copy> window;
    CUresult result = CUDA_SUCCESS;
    const auto arrived = [&](Chunk& done) {
        done.arrived();
        space.moved_in += done.bytes;
    };
    for (;;) {
        space.adopt_order();
        Chunk* chunk = next_to_come(space);
        if (chunk && !chunk->on_device() && space.mapped + chunk->bytes > space.limit) chunk = nullptr;
        if (chunk && space.mapped > space.limit) chunk = nullptr;
        if (chunk && window.size() < kWindow) {
            result = bring(space, *chunk);
            if (result != CUDA_SUCCESS) break;
            if (!chunk->needs_copy_in()) continue;
            CUevent event = take_event(m);
            result = start_copy(m, *chunk, false, event);
            if (result != CUDA_SUCCESS) {
                m.streams.events.push_back(event);
                break;
            }
            window.push_back({chunk, event});
            continue;
        }
        if (window.empty()) break;
        result = finish_copy(m, window, lock, false, arrived);
        space.publish();
        if (result != CUDA_SUCCESS) break;
    }
    while (!window.empty()) {
        CUresult failed = finish_copy(m, window, lock, false, arrived);
        if (failed != CUDA_SUCCESS && result == CUDA_SUCCESS) result = failed;
    }
    return result;
}

// With `mutex`: programs may go on.
void open_gate(SwapSpace& space) {
    for (Chunk* chunk : space.chunks)
        if (!chunk->leaving) chunk->opened();
    space.gate.open();
    space.publish();
    space.tell(wire::MessageType::kMoved);
}

// The context is beyond help: every call answers the same, for ever.
bool is_sticky(CUresult result) {
    switch (result) {
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_UNKNOWN:
            return true;
        default:
            return false;
    }
}

// What the driver answered. After enough answers of the kind in a row the program shall see for itself.
void take_note(Mover& m, CUresult result) {
    m.dead = is_sticky(result) ? m.dead + 1 : 0;
    if (m.dead < kDeadAfter) return;
    std::lock_guard lock(m.space.mutex);
    m.space.broken = true;
}

// Closes the gate and waits until nothing runs. False: not now; then the gate is as it was.
bool stop_program(Mover& m) {
    SwapSpace& space = m.space;
    if (space.gate.closed() && space.stopped) return true;
    if (launch_state.captures.load() != 0) return false;
    const bool was_open = !space.gate.closed();
    if (was_open) {
        space.close_gate();
        stop_holding(space.device, wire::StopReason::kIdle, space.device.pacer.poll());
    }
    bool stopped = space.gate.await_empty(kLeaveTime) && launch_state.captures.load() == 0;
    if (stopped) {
        CUresult failed = drain(m);
        stopped = failed == CUDA_SUCCESS;
        take_note(m, failed);
    }
    std::lock_guard lock(space.mutex);
    space.stopped = stopped;
    if (!stopped && was_open && space.all_resident()) space.gate.open();
    space.publish();
    return stopped;
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
        return kRestOpen;
    }
    if (!context) {  // nothing is left to move
        if (space.gate.closed()) open_gate(space);
        return kRestOpen;
    }
    lock.unlock();
    std::lock_guard using_driver(m.using_driver);
    ContextScope scope(context);
    if (!scope.ok()) return retry();
    if (ready(m, context) != CUDA_SUCCESS) return retry();
    if (too_much) {
        if (!stop_program(m)) return launch_state.captures.load() != 0 ? kRestClosed : retry();
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
    return rest();
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
    if (scope.ok()) {
        for (CUevent event : m->streams.events) own().cuEventDestroy_v2(event);
        own().cuStreamDestroy_v2(m->streams.in);
        own().cuStreamDestroy_v2(m->streams.out);
    }
    m->streams = {};
    std::lock_guard lock(space.mutex);
    space.arena.context_gone();
}

}  // namespace gemlet::hook
