// How much of the host's memory a program keeps ready for memory that moves: as much as may have to leave the
// device, before it has to, and not more for long, since memory that one program does not need is promised to
// others.
#include <algorithm>

#include "hook/link/say.h"
#include "hook/lookup/own_calls.h"
#include "hook/submit/streams.h"
#include "hook/swap/mover.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kQuiet = 100'000'000;    // before anything is done ahead of need
constexpr uint64_t kSpare = 2'000'000'000;  // before memory is given back: short programs come and go
constexpr uint64_t kBreath = 1'000'000;     // between two segments: others want the driver, too

// Pinning takes the driver's lock for 10 ms and more, and a program that grows or moves needs that lock itself.
bool is_quiet(Mover& m, uint64_t movable) {
    const uint32_t order = m.space.page.load()->order.load(std::memory_order_relaxed);
    if (order != m.quiet_order || movable != m.quiet_movable) {
        m.quiet_order = order;
        m.quiet_movable = movable;
        m.quiet_since = now_ns();
    }
    return now_ns() - m.quiet_since >= kQuiet;
}

// No chunk has a place in the segment any more. False: one has to.
bool clear_segment(SwapSpace& space, uint64_t offset) {
    std::lock_guard lock(space.mutex);
    const auto inside = [&](const Chunk* c) { return c->slot != kNoSlot && c->slot / kSegment == offset / kSegment; };
    for (const Chunk* chunk : space.chunks)
        if (inside(chunk) && !chunk->may_leave_slot()) return false;
    for (Chunk* chunk : space.chunks) {
        if (!inside(chunk)) continue;
        space.arena.give(chunk->slot);
        chunk->leave_slot();
    }
    return true;
}

// A segment that is not needed. How long to rest.
uint64_t give_back_spare(Mover& m, uint64_t rest) {
    SwapSpace& space = m.space;
    const wire::ResidencyPage& page = *space.page.load();
    // Without a daemon, and before a new one has answered, the need is not known.
    const bool known = space.managed() && page.order.load(std::memory_order_relaxed) != 0;
    const auto last = known ? space.arena.last_taken(host_side(page.host.load())) : std::nullopt;
    if (!last) {
        m.spare_since = 0;
        return rest;
    }
    const uint64_t now = now_ns();
    if (m.spare_since == 0) m.spare_since = now;
    if (now - m.spare_since < kSpare) return rest;
    ContextScope scope(m.streams.context);  // none: nothing is pinned either
    if (clear_segment(space, *last) && space.arena.release(*last)) {
        std::lock_guard lock(space.mutex);
        space.publish();
        return kBreath;
    }
    m.spare_since = now;  // tried again
    return rest;
}

}  // namespace

uint64_t tend_host_side(Mover& m, CUcontext context, uint64_t movable, uint64_t rest) {
    SwapSpace& space = m.space;
    const bool quiet = is_quiet(m, movable);
    if (launch_state.captures.load() != 0) return rest;
    const uint64_t away = space.page.load()->host.load(std::memory_order_relaxed);
    const auto offset = space.arena.to_pin(std::min(host_side(away), movable));
    if (!offset || !context) return give_back_spare(m, rest);
    m.spare_since = 0;
    if (!quiet) return std::min(rest, kQuiet);
    ContextScope scope(m.streams.context ? m.streams.context : context);
    if (!scope.ok() || make_streams(m, context) != CUDA_SUCCESS) return rest;
    return space.arena.pin(*offset) == CUDA_SUCCESS ? kBreath : rest;
}

bool take_place_of_another(Mover& m, Chunk& chunk) {
    for (Chunk* other : m.space.chunks) {  // the first ones go last
        if (other == &chunk || other->slot == kNoSlot || other->bytes != chunk.bytes) continue;
        if (!other->may_leave_slot() || !m.space.arena.pinned(other->slot)) continue;
        const uint64_t place = other->slot;
        other->leave_slot();
        if (chunk.slot != kNoSlot) m.space.arena.give(chunk.slot);
        chunk.leave_slot();
        chunk.slot = place;
        return true;
    }
    return false;
}

void say_no_memory(SwapSpace& space) {
    constexpr double gib = 1 << 30;
    say_once(
        Topic::kHost,
        "the system refuses memory for what should leave GPU %d: this process has %.2f GiB of the host's for it, "
        "and stays on the device while others wait\n"
        "  hint: see its limits (ulimit -d, ulimit -v), vm.overcommit_memory, and `host_memory` of the daemon",
        space.device.ordinal, double(space.arena.taken_bytes()) / gib);
}

}  // namespace gemlet::hook
