#include "hook/submit/pacer.h"

#include <algorithm>
#include <utility>

#include "hook/link/clock.h"
#include "hook/lookup/own_calls.h"
#include "hook/submit/device.h"
#include "hook/submit/streams.h"
#include "hook/submit/waits.h"

namespace gemlet::hook {

namespace {

// A sleep of 20 us takes 70 us with the default timer slack; with 100 us and more still queued nothing runs dry.
uint64_t nap(uint64_t inflight, uint64_t window) {
    return std::clamp<uint64_t>((inflight - std::min(inflight, window)) / 2, 20'000, 500'000);
}

// A sleep may be longer than asked for by almost this much.
constexpr uint64_t kWakeUp = 150'000;

// A unit that has run for its whole estimate still counts for this much.
constexpr uint64_t kAtLeast = 50'000;

// Work that is late by this much, beyond its estimate, is taken to wait for the host.
constexpr uint64_t kPatience = 10'000'000;

constexpr size_t kMaxSamples = 64;

bool shared(const Stream& stream) {
    const wire::ClientPage* page = stream.page.load(std::memory_order_acquire);
    return page && page->flags.load(std::memory_order_relaxed) & wire::kPageShared;
}

// A queue may be full with this many launches: the driver's has room for 1022 entries, and events take some of them.
constexpr uint64_t kMany = 128;

// A call of the driver for a launch takes a few microseconds.
constexpr uint64_t kOneLaunch = 20'000;

CUresult record_on(Stream& stream, CUevent event) {
    const CUstream handle = stream.handle.load(std::memory_order_relaxed);
    const Submitting submitting(stream);
    return stream.per_thread ? own().cuEventRecord_ptsz(event, handle) : own().cuEventRecord(event, handle);
}

}  // namespace

CUevent Pacer::take_event(CUcontext context, bool timing) {
    for (Pool& pool : pools_) {
        if (pool.context != context) continue;
        auto& events = timing ? pool.timed : pool.untimed;
        if (events.empty()) break;
        CUevent event = events.back();
        events.pop_back();
        return event;
    }
    CUevent event = nullptr;
    unsigned flags = timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
    return own().cuEventCreate(&event, flags) == CUDA_SUCCESS ? event : nullptr;
}

void Pacer::give_event(CUcontext context, bool timing, CUevent event) {
    auto pool = std::find_if(pools_.begin(), pools_.end(), [&](const Pool& p) { return p.context == context; });
    if (pool == pools_.end()) pool = pools_.insert(pools_.end(), Pool{context, {}, {}});
    (timing ? pool->timed : pool->untimed).push_back(event);
}

void Pacer::record(Stream& stream, std::unique_lock<std::mutex>& lock) {
    uint64_t ns = stream.unmarked_ns.exchange(0, std::memory_order_relaxed);
    uint32_t launches = stream.unmarked.exchange(0, std::memory_order_relaxed);
    CUcontext context = stream.context.load(std::memory_order_relaxed);
    if (!launches || !context) return;
    ContextScope scope(context);
    CUevent event = scope.ok() ? take_event(context, false) : nullptr;
    if (!event) return;
    recording_ns_ += ns;
    recording_launches_ += launches;
    lock.unlock();
    const CUresult result = record_on(stream, event);
    lock.lock();
    recording_ns_ -= ns;
    recording_launches_ -= launches;
    if (result != CUDA_SUCCESS) {
        give_event(context, false, event);
        return;
    }
    marks_.push_back({&stream, context, event, ns, launches});
}

void Pacer::reap() {
    const uint64_t now = now_ns();
    uint64_t inflight = recording_ns_;
    Stream* running[16];
    size_t n_running = 0;
    if (marks_.empty()) running_since_ = now;
    for (auto mark = marks_.begin(); mark != marks_.end();) {
        // Marks of one stream complete in order: one query a stream is enough once one was found running.
        bool behind = std::find(running, running + n_running, mark->stream) != running + n_running;
        if (!behind && own().cuEventQuery(mark->event) != CUDA_ERROR_NOT_READY) {
            give_event(mark->context, false, mark->event);
            progress_.work_ns += mark->nanoseconds;
            mark = marks_.erase(mark);
            running_since_ = now;
            continue;
        }
        if (!behind && n_running < std::size(running)) running[n_running++] = mark->stream;
        inflight += mark->nanoseconds;
        ++mark;
    }
    // The running mark has already run for a while, so it counts for less. It counts for something until it is
    // complete, in case its estimate was too short.
    if (!marks_.empty()) {
        uint64_t front = marks_.front().nanoseconds;
        inflight -= std::min(now - running_since_, front - std::min(front / 16, kAtLeast));
        inflight = std::max<uint64_t>(inflight, 1);
    }
    inflight_.store(inflight, std::memory_order_relaxed);
}

void Pacer::learn() {
    for (size_t i = 0; i < samples_.size();) {
        Sample& s = samples_[i];
        CUresult ready = own().cuEventQuery(s.end);
        if (ready == CUDA_ERROR_NOT_READY) {
            ++i;
            continue;
        }
        float ms = 0;
        if (ready == CUDA_SUCCESS && own().cuEventElapsedTime(&ms, s.begin, s.end) == CUDA_SUCCESS)
            estimates.learn(s.key, uint64_t(ms * 1e6f), s.first, s.shared || shared(*s.stream));
        give_event(s.context, true, s.begin);
        give_event(s.context, true, s.end);
        s = samples_.back();
        samples_.pop_back();
    }
}

uint64_t Pacer::mark(Stream& stream, uint64_t window_ns) {
    const RelaxedCapture relaxed;  // another thread may capture, and there are events to be asked for
    std::unique_lock recording(stream.recording);
    std::unique_lock lock(mutex_);
    record(stream, lock);
    recording.unlock();
    reap();
    learn();
    if (window_ns <= kLatencyWindow)
        wait_for_last_moment(lock, stream.device->waits, window_ns);
    else
        wait_for_room(lock, stream.device->waits, window_ns);
    return inflight_.load(std::memory_order_relaxed);
}

// The work in flight may wait for something that this very thread does next: a word it writes, a host function
// that needs its lock, the same collective on another device. So every wait for room ends.
uint64_t Pacer::give_up_at(uint64_t now) const {
    return now + kPatience + std::min(2 * inflight_.load(std::memory_order_relaxed), 4 * kPatience);
}

bool Pacer::stuck() {
    std::lock_guard lock(mutex_);
    return !marks_.empty() && now_ns() > running_since_ + 2 * marks_.front().nanoseconds + kPatience;
}

// One unit of work is always allowed to wait behind the running one, however long it is: the device must not idle
// while this thread wakes.
void Pacer::wait_for_room(std::unique_lock<std::mutex>& lock, Waits& waits, uint64_t window_ns) {
    const uint64_t end = give_up_at(now_ns());
    while (inflight_.load(std::memory_order_relaxed) > window_ns && marks_.size() > 1 && now_ns() < end) {
        uint64_t ns = nap(inflight_.load(std::memory_order_relaxed), window_ns);
        const Waiting waiting(&waits);
        lock.unlock();
        sleep_ns(ns);
        lock.lock();
        reap();
    }
}

// A latency client may come any moment, and whatever is queued by then goes ahead of it: the next unit is submitted
// just before the running one ends. No sleep is that exact, so the last part of the wait spins.
void Pacer::wait_for_last_moment(std::unique_lock<std::mutex>& lock, Waits& waits, uint64_t window_ns) {
    const uint64_t late = now_ns() + 2 * inflight_.load(std::memory_order_relaxed) + kWakeUp;
    const uint64_t end = give_up_at(now_ns());
    for (uint64_t left; (left = inflight_.load(std::memory_order_relaxed)) > window_ns && now_ns() < end;) {
        const uint64_t early = left - window_ns;
        const Waiting waiting(&waits);
        lock.unlock();
        if (now_ns() > late)
            sleep_ns(20'000);  // an estimate was wrong, or the device works for somebody else
        else if (early > kWakeUp)
            sleep_ns(std::min<uint64_t>(early - kWakeUp, 500'000));
        else
            step_aside();
        lock.lock();
        reap();
    }
}

uint64_t Pacer::left_unmarked(Stream& stream, uint64_t now) {
    const uint64_t ns = stream.unmarked_ns.load(std::memory_order_relaxed);
    if (ns != stream.seen_ns) {
        stream.seen_ns = ns;
        stream.seen_at = now;
    }
    return ns - std::min(ns, now - stream.seen_at);
}

bool Pacer::is_empty(const Stream& stream) {
    ContextScope scope(stream.context.load(std::memory_order_relaxed));
    return scope.ok() && own().cuStreamQuery(stream.handle.load(std::memory_order_relaxed)) == CUDA_SUCCESS;
}

Pacer::Look Pacer::look(bool sampling) {
    return look(sampling, false);
}

uint64_t Pacer::poll() {
    return look(false, true).inflight;
}

uint64_t Pacer::queued() const {
    uint64_t sum = recording_launches_;
    for (const Mark& mark : marks_) sum += mark.launches;
    for (const Stream* s : streams_) sum += s->unmarked.load(std::memory_order_relaxed);
    return sum;
}

bool Pacer::holds_up(const Stream& stream) {
    const uint64_t launches = stream.launches.load(std::memory_order_relaxed);
    const uint64_t until = now_ns() + kOneLaunch;
    while (stream.submitting.load(std::memory_order_relaxed) != 0 &&
           stream.launches.load(std::memory_order_relaxed) == launches) {
        if (now_ns() >= until) return true;
        step_aside();
    }
    return false;
}

void Pacer::barrier() {
    constexpr uint64_t kLongest = 1'000'000'000, kStep = 20'000;
    const uint64_t begin = now_ns();
    while (!recording_.try_lock()) {
        if (now_ns() - begin > kLongest) return;
        sleep_ns(kStep);
    }
    recording_.unlock();
}

bool Pacer::knows(const Stream* stream) const {
    return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

Pacer::Look Pacer::look(bool sampling, bool mark_all) {
    // A record may wait for room; nobody waits for it here.
    const std::unique_lock looking(recording_, std::try_to_lock);
    std::unique_lock lock(mutex_);
    const auto may_ask = [] { return launch_state.captures.load() == 0; };
    const uint64_t now = now_ns();
    uint64_t unmarked = 0;
    reap();
    bool all_empty = marks_.empty() && recording_launches_ == 0;
    bool held_up = false;
    const bool many = queued() >= kMany;
    bool recorded = false;  // so streams may have gone meanwhile
    if (looking) looked_at_ = streams_;
    for (Stream* s : looking ? looked_at_ : streams_) {
        if (recorded && !knows(s)) continue;
        const uint64_t launches = s->launches.load(std::memory_order_relaxed);
        const bool launched = std::exchange(s->looked_at, launches) != launches;
        if (many && holds_up(*s)) {  // any call for the stream would wait as long
            held_up = true;
            all_empty = false;
            unmarked += s->unmarked_ns.load(std::memory_order_relaxed);
            continue;
        }
        if (s->unmarked.load(std::memory_order_relaxed) == 0) continue;
        if (launched && !mark_all) {
            const bool empty = sampling && may_ask() && !s->per_thread && is_empty(*s);
            all_empty = all_empty && empty;
            if (!empty) unmarked += s->unmarked_ns.load(std::memory_order_relaxed);
        } else if (s->per_thread || !may_ask()) {
            const uint64_t left = left_unmarked(*s, now);
            all_empty = all_empty && left == 0;
            unmarked += left;
        } else if (std::unique_lock recording(s->recording, std::defer_lock); looking && recording.try_lock()) {
            all_empty = all_empty && is_empty(*s);
            record(*s, lock);
            recorded = true;
        } else {  // the next look can
            all_empty = false;
            unmarked += s->unmarked_ns.load(std::memory_order_relaxed);
        }
    }
    reap();
    learn();
    return {inflight_.load(std::memory_order_relaxed) + unmarked, !all_empty, held_up};
}

Pacer::Look Pacer::look_at_marks() {
    std::lock_guard lock(mutex_);
    reap();
    uint64_t unmarked = 0;
    for (const Stream* s : streams_) unmarked += s->unmarked_ns.load(std::memory_order_relaxed);
    return {inflight_.load(std::memory_order_relaxed) + unmarked, true};
}

void Pacer::sample(Look look, bool awaited, uint64_t samples) {
    std::lock_guard lock(mutex_);
    progress_.samples += samples;
    if (look.busy) progress_.busy += samples;
    if (look.busy && awaited) progress_.awaited += samples;
}

bool Pacer::may_sample() {
    return budget_.take(now_ns());
}

bool Pacer::begin_sample(Stream& stream, uint64_t key, bool first, Sample& sample) {
    const RelaxedCapture relaxed;
    const std::lock_guard recording(stream.recording);
    std::unique_lock lock(mutex_);
    if (samples_.size() >= kMaxSamples) learn();
    CUcontext context = stream.context.load(std::memory_order_relaxed);
    if (samples_.size() >= kMaxSamples || !context) return false;
    ContextScope scope(context);
    if (!scope.ok()) return false;
    sample = {key, first, context, take_event(context, true), take_event(context, true), &stream, shared(stream)};
    lock.unlock();
    if (sample.begin && sample.end && record_on(stream, sample.begin) == CUDA_SUCCESS) return true;
    lock.lock();
    if (sample.begin) give_event(context, true, sample.begin);
    if (sample.end) give_event(context, true, sample.end);
    return false;
}

void Pacer::end_sample(Stream& stream, Sample& sample) {
    const std::lock_guard recording(stream.recording);
    ContextScope scope(sample.context);
    const CUresult result = record_on(stream, sample.end);
    const std::lock_guard lock(mutex_);
    if (result == CUDA_SUCCESS) {
        sample.shared = sample.shared || shared(stream);
        samples_.push_back(sample);
        return;
    }
    give_event(sample.context, true, sample.begin);
    give_event(sample.context, true, sample.end);
}

void Pacer::settled(Stream& stream) {
    stream.unmarked_ns.store(0, std::memory_order_relaxed);
    stream.unmarked.store(0, std::memory_order_relaxed);
}

void Pacer::add_stream(Stream* stream, const std::atomic<wire::ClientPage*>& page) {
    std::lock_guard lock(mutex_);
    stream->page.store(page.load());  // set_page() runs after a change of `page`, under the same lock
    stream->gate.store(gate_, std::memory_order_release);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void Pacer::set_page(wire::ClientPage* page) {
    std::lock_guard lock(mutex_);
    for (Stream* s : streams_) s->page.store(page, std::memory_order_release);
}

void Pacer::set_gate(MoveGate* gate) {
    std::lock_guard lock(mutex_);
    gate_ = gate;
    for (Stream* s : streams_) s->gate.store(gate, std::memory_order_release);
}

std::vector<CUcontext> Pacer::contexts() {
    std::lock_guard lock(mutex_);
    std::vector<CUcontext> all;
    for (const Stream* s : streams_) all.push_back(s->context.load(std::memory_order_relaxed));
    for (const Pool& p : pools_) all.push_back(p.context);  // also of streams that are gone and not yet done
    return all;
}

Pacer::Progress Pacer::progress() {
    std::lock_guard lock(mutex_);
    return progress_;
}

uint64_t Pacer::launches() {
    std::lock_guard lock(mutex_);
    uint64_t sum = past_launches_;
    for (const Stream* s : streams_) sum += s->launches.load(std::memory_order_relaxed);
    return sum;
}

std::vector<Stream*> Pacer::streams_of(CUcontext context) {
    const std::lock_guard lock(mutex_);
    std::vector<Stream*> theirs;
    for (Stream* s : streams_)
        if (s->context.load(std::memory_order_relaxed) == context) theirs.push_back(s);
    return theirs;
}

void Pacer::forget(CUcontext context) {
    const RelaxedCapture relaxed;
    // The driver must not be asked for them any more. None is added, as nobody may use the context now.
    std::vector<std::unique_lock<std::mutex>> recordings;
    for (Stream* stream : streams_of(context)) recordings.emplace_back(stream->recording);
    const std::lock_guard lock(mutex_);
    ContextScope scope(context);
    auto destroy = [&](CUevent event) {
        if (scope.ok()) own().cuEventDestroy_v2(event);
    };
    std::erase_if(marks_, [&](const Mark& m) {
        if (m.context != context) return false;
        destroy(m.event);
        return true;
    });
    std::erase_if(samples_, [&](const Sample& s) {
        if (s.context != context) return false;
        destroy(s.begin);
        destroy(s.end);
        return true;
    });
    std::erase_if(pools_, [&](const Pool& p) {
        if (p.context != context) return false;
        for (CUevent e : p.timed) destroy(e);
        for (CUevent e : p.untimed) destroy(e);
        return true;
    });
    std::erase_if(streams_, [&](Stream* s) {
        if (s->context.load(std::memory_order_relaxed) != context) return false;
        past_launches_ += s->launches.load(std::memory_order_relaxed);
        return true;
    });
    reap();
}

void Pacer::forget(Stream& stream) {
    const std::lock_guard recording(stream.recording);  // the driver must not be asked for it any more
    const std::lock_guard lock(mutex_);
    // A destroyed stream finishes its work first; its marks stay until they complete.
    settled(stream);
    if (std::erase(streams_, &stream)) past_launches_ += stream.launches.load(std::memory_order_relaxed);
}

}  // namespace gemlet::hook
