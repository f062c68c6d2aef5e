// What a program declares about its memory (swap/declare.h): the ends of its iterations, and which bytes are dead
// then.
#include "hook/swap/declare.h"

#include <algorithm>

#include "hook/lookup/reentry.h"
#include "hook/submit/streams.h"
#include "hook/swap/reservation.h"
#include "hook/swap/views.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kLongestIteration = 10'000'000'000;  // longer ones are pauses
constexpr uint64_t kLongestWait = 2'000'000'000;
constexpr uint64_t kLook = 500'000;
constexpr uint64_t kSlack = 20'000'000;  // iterations are not clocks, and threads wake up late

std::atomic<uint64_t> last_ticket{0};

template <class Do>
void each_space(Do&& act) {
    if (!swap_active()) return;
    for (CUdevice device = 0; device < kMaxDevices; ++device)
        if (SwapSpace* space = swap_space(device)) act(*space);
}

int iteration_ends(SwapSpace& space, uint64_t now) {
    const uint64_t before = space.iteration_end.exchange(now);
    if (before != 0 && now - before < kLongestIteration) {
        const uint64_t known = space.iteration.load();
        space.iteration.store(known == 0 ? now - before : (known * 3 + (now - before)) / 4);
    }
    if (space.end_wanted.load()) return GEMLET_DEAD_WANTED;
    return space.ever_moved.load() ? GEMLET_DEAD_USEFUL : GEMLET_DEAD_USELESS;
}

void forget_declarations(SwapSpace& space) {
    if (space.ticket == 0) return;
    for (Chunk* chunk : space.chunks) chunk->dead.clear();
    space.ticket = 0;
}

// Bytes of [begin, end) that are mapped from what cuMemCreate made.
uint64_t declare_mapped(SwapSpace& space, CUdeviceptr begin, CUdeviceptr end) {
    uint64_t taken = 0;
    for (const View* view : views_in(space, begin, end - begin))
        for (auto& chunk : space.reservations.at(view->created->home)->chunks)
            for (const ChunkView& part : chunk->views) {
                const CUdeviceptr from = std::max(begin, part.address), to = std::min(end, part.address + part.bytes);
                if (part.access != &view->access || from >= to) continue;
                chunk->dead.add(part.offset + (from - part.address), part.offset + (to - part.address));
                taken += to - from;
            }
    return taken;
}

// Bytes of [begin, end) that are movable memory of the space.
uint64_t declare(SwapSpace& space, CUdeviceptr begin, CUdeviceptr end) {
    uint64_t taken = begin < end ? declare_mapped(space, begin, end) : 0;
    auto next = space.reservations.upper_bound(begin);
    if (next != space.reservations.begin()) --next;
    for (; next != space.reservations.end() && next->first < end; ++next)
        for (auto& chunk : next->second->chunks) {
            const CUdeviceptr from = std::max(begin, chunk->address);
            const CUdeviceptr to = std::min(end, chunk->address + chunk->bytes);
            if (from >= to) continue;
            chunk->dead.add(from - chunk->address, to - chunk->address);
            taken += to - from;
        }
    return taken;
}

}  // namespace

void confirm_declarations(SwapSpace& space) {
    if (space.ticket == 0) return;
    if (space.gate.ticket() != space.ticket) return forget_declarations(space);
    space.ticket = 0;
}

// No longer than an iteration and a quarter, and no longer than a quarter of the time it had: others wait.
bool waits_for_iteration(SwapSpace& space) {
    const uint64_t begun = now_ns();
    const uint64_t iteration = space.iteration.load();
    const auto current = [&] {
        std::lock_guard lock(space.mutex);
        return space.ticket != 0 && space.gate.ticket() == space.ticket;
    };
    if (iteration == 0 || begun - space.iteration_end.load() > 2 * iteration + kSlack || current()) return false;
    const uint64_t patience =
        std::min({iteration + iteration / 4 + kSlack, (begun - space.opened_at.load()) / 4, kLongestWait});
    space.end_wanted.store(true);
    while (!space.gate.closed() && now_ns() - begun < patience && launch_state.captures.load() == 0) sleep_ns(kLook);
    space.end_wanted.store(false);
    return true;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

__attribute__((visibility("default"))) int gemlet_iteration_ends(void) {
    int use = GEMLET_DEAD_USELESS;
    const uint64_t now = swap_active() ? now_ns() : 0;
    each_space([&](SwapSpace& space) { use = std::max(use, iteration_ends(space, now)); });
    return use;
}

__attribute__((visibility("default"))) uint64_t gemlet_dead_begin(void) {
    const uint64_t ticket = ++last_ticket;
    each_space([&](SwapSpace& space) { space.gate.give_ticket(ticket); });
    return ticket;
}

__attribute__((visibility("default"))) int64_t gemlet_declare_dead(uint64_t ticket, const uint64_t* starts,
                                                                   const uint64_t* bytes, uint64_t count) {
    int64_t taken = 0;
    bool lapsed = ticket == 0 || (count > 0 && (!starts || !bytes));
    each_space([&](SwapSpace& space) {
        std::lock_guard lock(space.mutex);
        if (lapsed || space.gate.ticket() != ticket) {
            lapsed = true;
            return;
        }
        // What is on its way already was planned without it.
        if (!(space.gate.closed() && space.stopped)) {
            if (space.ticket != ticket) forget_declarations(space);
            space.ticket = ticket;
            for (uint64_t i = 0; i < count; ++i)
                if (bytes[i] <= UINT64_MAX - starts[i])
                    taken += int64_t(declare(space, starts[i], starts[i] + bytes[i]));
        }
        if (space.end_wanted.load() && !space.gate.closed()) {
            space.close_gate();
            space.wake_mover();
        }
    });
    return lapsed ? -1 : taken;
}

__attribute__((visibility("default"))) void gemlet_declare_live(void) {
    each_space([&](SwapSpace& space) { space.gate.give_ticket(0); });
}

}  // extern "C"
