// Brings a program to a stop before its memory moves: no thread inside the gate, nothing running, no capture.
#include <algorithm>

#include "hook/submit/streams.h"
#include "hook/submit/token.h"
#include "hook/swap/mover.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kLeaveTime = 5'000'000'000;  // for threads inside the gate, and for what they launched
constexpr uint64_t kSyncTime = 1'000'000'000;   // for what else runs when all of that has ended
constexpr int kDeadAfter = 5;                   // synchronisations in a row that fail: the context is dead

// Waits until nothing of this process runs on the device any more. Not called during a capture.
CUresult drain(Mover& m) {
    const uint64_t end = now_ns() + kLeaveTime;
    while (m.space.device.pacer.poll() > 0) {  // bounds the wait below: a kernel that never ends must not hold us
        if (now_ns() > end) return CUDA_ERROR_NOT_READY;
        sleep_ns(20'000);
    }
    std::vector<CUcontext> contexts = m.space.device.pacer.contexts();
    {
        std::lock_guard lock(m.space.mutex);
        for (auto& [start, r] : m.space.reservations)
            if (r->context) contexts.push_back(r->context);
    }
    std::sort(contexts.begin(), contexts.end());
    contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
    for (CUcontext context : contexts)
        if (CUresult failed = m.sync.wait(context, kSyncTime)) return failed;
    return CUDA_SUCCESS;
}

// The context is dead: every call answers the same error for ever.
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

}  // namespace

void take_note(Mover& m, CUresult result) {
    m.dead = is_sticky(result) ? m.dead + 1 : 0;
    if (m.dead < kDeadAfter) return;
    std::lock_guard lock(m.space.mutex);
    m.space.broken = true;
}

bool stop_program(Mover& m) {
    SwapSpace& space = m.space;
    {
        std::lock_guard lock(space.mutex);
        if (space.gate.closed() && space.stopped) return true;
    }
    if (launch_state.captures.load() != 0) return false;
    if (m.sync.goes_on()) return false;  // it would only wait again, and its threads with it
    bool was_open = !space.gate.closed();
    // Worth waiting a moment: at the end of an iteration much of the memory may be dead. Its declaration then
    // closes the gate.
    if (was_open && waits_for_iteration(space) && space.page.load()->order.load() != 0) {
        std::lock_guard lock(space.mutex);
        space.adopt_order();
        if (!space.gate.closed() && space.mapped <= space.limit) return false;  // nobody wants it any more
    }
    if (was_open) {
        std::lock_guard lock(space.mutex);
        if (!space.gate.closed()) space.close_gate();
    }
    if (was_open) {
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
    if (stopped) {
        confirm_declarations(space);
        free_blocks_are_dead(space);
        for (Chunk* chunk : space.chunks)
            if (chunk->content && chunk->dead.covers(0, chunk->bytes)) chunk->discard();
    }
    if (!stopped && was_open && space.all_resident()) space.gate.open();
    space.publish();
    return stopped;
}

}  // namespace gemlet::hook
