// Copies go through a bounded window: while some are under way, the memory of those that are done is given back (or
// that of the next is made), so that the link is kept busy, and on the other side the next program's memory can come
// in meanwhile.
#include <deque>

#include "hook/lookup/own_calls.h"
#include "hook/swap/mover.h"

namespace gemlet::hook {

namespace {

constexpr size_t kWindow = 4;  // copies under way

struct Copy {
    Chunk* chunk;
    CUevent event;
    uint64_t place;  // of its fingerprints
};

constexpr uint64_t kNoPlace = UINT64_MAX;
constexpr uint64_t kPlacesEach = kChunk / kPart;
static_assert(kWindow * kPlacesEach <= Fingerprinter::kPlaces);

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
    if (out) chunk.copying();
    CUresult result = CUDA_SUCCESS;
    for (const Span& span : out ? chunk.to_copy : chunk.to_copy_in()) {
        const CUdeviceptr at = chunk.address + span.begin;
        const uint64_t bytes = span.end - span.begin;
        result = out ? own().cuMemcpyDtoHAsync_v2(host + span.begin, at, bytes, stream)
                     : own().cuMemcpyHtoDAsync_v2(at, host + span.begin, bytes, stream);
        if (result != CUDA_SUCCESS) break;
    }
    if (result == CUDA_SUCCESS) result = own().cuEventRecord(event, stream);
    if (result == CUDA_SUCCESS) {
        chunk.busy = true;
        return result;
    }
    own().cuStreamSynchronize(stream);  // a copy nobody waits for must not go on into memory that is gone
    return result;
}

void take_results(Mover& m, Chunk& chunk, uint64_t place) {
    const auto results = m.fingerprinter.results(place, chunk.parts());
    chunk.now.assign(results.begin(), results.end());
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
    if (result == CUDA_SUCCESS && copy.place != kNoPlace) take_results(m, *copy.chunk, copy.place);
    if (result == CUDA_SUCCESS) done(*copy.chunk);
    m.space.copied.notify_all();
    return result;
}

// Finds out what the host has already, and what it lacks.
void examine(Mover& m, std::unique_lock<std::mutex>& lock) {
    SwapSpace& space = m.space;
    const bool able = m.fingerprinter.ready();
    std::vector<Copy> started;
    do {
        started.clear();
        for (Chunk* chunk : space.chunks) {
            if (!chunk->needs_copy_out() || chunk->planned || chunk->busy || chunk->leaving) continue;
            const uint64_t place = started.size() * kPlacesEach;
            if (place + kPlacesEach > Fingerprinter::kPlaces) break;
            chunk->record = able && chunk->worth_comparing();
            if (!chunk->record || !chunk->comparable() ||
                !m.fingerprinter.start(chunk->address, chunk->bytes, place, m.streams.out)) {
                chunk->plan();
                continue;
            }
            chunk->busy = true;
            started.push_back({chunk, nullptr, place});
        }
        if (started.empty()) return;
        lock.unlock();
        const bool known = own().cuStreamSynchronize(m.streams.out) == CUDA_SUCCESS;
        lock.lock();
        for (const Copy& comparison : started) {
            comparison.chunk->busy = false;
            comparison.chunk->record = false;  // once is enough
            if (known) take_results(m, *comparison.chunk, comparison.place);
            comparison.chunk->plan();
        }
        space.copied.notify_all();
    } while (true);
}

// Starts a copy and puts it into the window, which has room.
CUresult begin_copy(Mover& m, Chunk& chunk, std::deque<Copy>& window, bool out, uint64_t place) {
    CUevent event = m.streams.events.back();
    m.streams.events.pop_back();
    const CUresult result = start_copy(m, chunk, out, event);
    if (result == CUDA_SUCCESS)
        window.push_back({&chunk, event, place});
    else
        m.streams.events.push_back(event);
    return result;
}

// Finds pinned host memory for a chunk that goes out. False with an error in `result`, or if `mutex` was released
// meanwhile: then the chunk may have been freed, and the caller chooses anew.
bool has_place(Mover& m, Chunk& chunk, std::unique_lock<std::mutex>& lock, CUresult& result) {
    SwapSpace& space = m.space;
    if (chunk.slot == kNoSlot) {
        const auto slot = space.arena.take(chunk.bytes);
        if (!slot) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            return false;
        }
        chunk.slot = *slot;
    }
    if (space.arena.pinned(chunk.slot)) return true;
    // What the daemon promised is enough, if chunks that are here let go of their places.
    const uint64_t promised = space.page.load()->host.load(std::memory_order_relaxed);
    if (space.arena.taken_bytes() >= host_side(promised) && take_place_of_another(m, chunk)) return false;
    const uint64_t slot = chunk.slot;
    chunk.busy = true;
    lock.unlock();
    const CUresult pinned = space.arena.pin(slot);
    lock.lock();
    chunk.busy = false;
    space.copied.notify_all();
    if (pinned != CUDA_SUCCESS && !take_place_of_another(m, chunk)) {
        if (pinned == CUDA_ERROR_OUT_OF_MEMORY) say_no_memory(space);
        result = pinned;
    }
    return false;
}

// `recorded`: how many copies before it took a place for fingerprints.
CUresult begin_copy_out(Mover& m, Chunk& chunk, std::deque<Copy>& window, uint64_t& recorded) {
    if (!chunk.planned) chunk.plan();
    uint64_t place = kNoPlace;
    if (chunk.record) {
        place = recorded++ % kWindow * kPlacesEach;
        if (!m.fingerprinter.start(chunk.address, chunk.bytes, place, m.streams.out)) place = kNoPlace;
    }
    return begin_copy(m, chunk, window, true, place);
}

}  // namespace

CUresult make_streams(Mover& m, CUcontext context) {
    if (m.streams.context) return CUDA_SUCCESS;
    CopyStreams s;
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

void destroy_streams(Mover& m) {
    for (CUevent event : m.streams.events) own().cuEventDestroy_v2(event);
    own().cuStreamDestroy_v2(m.streams.in);
    own().cuStreamDestroy_v2(m.streams.out);
}

CUresult move_out(Mover& m, std::unique_lock<std::mutex>& lock) {
    SwapSpace& space = m.space;
    std::deque<Copy> window;
    CUresult result = CUDA_SUCCESS;
    uint64_t leaving = 0;   // bytes of the copies under way
    uint64_t recorded = 0;  // copies whose fingerprints are taken
    const auto give_up = [&](Chunk& chunk) {
        CUresult failed = vacate(space, chunk);
        if (failed == CUDA_SUCCESS) space.dropped += chunk.bytes - chunk.copied_bytes;
        if (failed != CUDA_SUCCESS) result = failed;
    };
    const auto copied = [&](Chunk& done) {
        done.copied();
        space.moved_out += bytes_of(done.to_copy);
    };
    space.ever_moved.store(true);
    examine(m, lock);
    while (result == CUDA_SUCCESS) {
        space.adopt_order();
        Chunk* chunk = space.mapped > space.limit + leaving ? next_to_go(space) : nullptr;
        if (chunk && !chunk->may_vacate() && chunk->planned && chunk->to_copy.empty()) chunk->copied();
        if (chunk && chunk->may_vacate()) {
            give_up(*chunk);
            continue;
        }
        if (chunk && window.size() < kWindow) {
            if (!has_place(m, *chunk, lock, result)) continue;
            result = begin_copy_out(m, *chunk, window, recorded);
            if (result == CUDA_SUCCESS) leaving += chunk->bytes;
            continue;
        }
        if (window.empty()) break;
        leaving -= window.front().chunk->bytes;
        CUresult failed = finish_copy(m, window, lock, true, [&](Chunk& done) {
            copied(done);
            if (!done.leaving) give_up(done);
        });
        if (failed != CUDA_SUCCESS) result = failed;
        space.publish();
        space.tell(wire::MessageType::kMoved);
    }
    while (!window.empty()) {
        CUresult failed = finish_copy(m, window, lock, true, copied);
        if (failed != CUDA_SUCCESS && result == CUDA_SUCCESS) result = failed;
    }
    return result;
}

CUresult move_in(Mover& m, std::unique_lock<std::mutex>& lock) {
    SwapSpace& space = m.space;
    std::deque<Copy> window;
    CUresult result = CUDA_SUCCESS;
    const auto arrived = [&](Chunk& done) {
        done.arrived();
        space.moved_in += bytes_of(done.to_copy_in());
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
            result = begin_copy(m, *chunk, window, false, kNoPlace);
            if (result != CUDA_SUCCESS) break;
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

}  // namespace gemlet::hook
