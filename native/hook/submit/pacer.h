// Bounds what one process has in flight on one device, in time.
//
// Without a bound a holder whose quantum ended runs on for 1022 queued launches: 21 ms at 20 us each, a second at
// 1 ms (measured on an H200). Each launch adds its estimate to its stream; when a third of the window has gathered,
// an event (a *mark*) is recorded behind it. The work in flight is what was launched since the last mark that
// completed.
//
// Marks are recorded by the launching thread, or, when it went quiet, by the watcher; never while any stream is being
// captured. `mutex` covers all but the counters of a stream that launches touch. A record waits as long as the queue
// of its stream is full, maybe for what another thread of the program does next. So it has a lock of its own, the
// stream's `recording`, which is taken before `mutex` and held up by work on that stream alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "hook/lookup/cuda_api.h"
#include "hook/submit/estimate.h"
#include "hook/submit/sample_budget.h"
#include "wire.h"

namespace gemlet::hook {

struct Device;
class MoveGate;
class Waits;

// One stream of one context as the pacer sees it. Slots live as long as the process; `handle` changes hands. What a
// launch touches is in the first cache line: after the driver's own work little else is in L1.
struct alignas(64) Stream {
    std::atomic<wire::ClientPage*> page{nullptr};  // its device's
    std::atomic<uint64_t> unmarked_ns{0};          // estimates of launches since the last mark
    std::atomic<uint32_t> unmarked{0};             // ... and how many
    // The last kernel's estimate, for as many launches of it in a row as need no sample.
    std::atomic<uint16_t> memo_left{0};
    // A thread is in the driver's call for it. Threads of one stream write it one over the other, which at worst
    // hides one of them.
    std::atomic<uint16_t> submitting{0};
    std::atomic<uint64_t> memo_key{0};
    std::atomic<uint64_t> memo_ns{0};
    std::atomic<uint64_t> launches{0};
    Device* device = nullptr;
    std::atomic<MoveGate*> gate{nullptr};  // null unless memory of this process can move, on whichever device

    alignas(64) std::atomic<CUstream> handle{nullptr};
    std::atomic<CUcontext> context{nullptr};
    uint64_t looked_at = 0;             // launches, as of the last look
    bool per_thread = false;            // only its own thread can record on it
    std::mutex recording;               // an event of the hook's
    uint64_t seen_ns = 0, seen_at = 0;  // what was unmarked, and since when, if only its own thread could mark it
};

// While the thread is in the driver's call for work on the stream.
class Submitting {
  public:
    explicit Submitting(Stream& stream) : stream_(stream) { stream_.submitting.store(1, std::memory_order_relaxed); }
    ~Submitting() { stream_.submitting.store(0, std::memory_order_relaxed); }
    Submitting(const Submitting&) = delete;
    Submitting& operator=(const Submitting&) = delete;

  private:
    Stream& stream_;
};

// A pair of events around one launch.
struct Sample {
    uint64_t key = 0;
    bool first = false;
    CUcontext context = nullptr;
    CUevent begin = nullptr, end = nullptr;
    const Stream* stream = nullptr;
    bool shared = false;  // another program may have run in between
};

class Pacer {
  public:
    Estimates estimates;

    // The windows up to this are those of a device with a latency client on it.
    static constexpr uint64_t kLatencyWindow = 100'000;

    // Behind the launch path, every third of a window: records a mark on `stream`, learns from finished samples, and
    // waits until less than `window_ns` is in flight. Returns what is in flight then.
    uint64_t mark(Stream& stream, uint64_t window_ns);

    // Without waiting: records what is unmarked (unless somebody captures), drops what is complete. For the watcher.
    //
    // A call for a stream makes a thread that launches on it at the same moment wait, and its waking up takes longer
    // than many launches. So streams that were launched on since the last look are asked only when `sampling`, and
    // left to that thread to mark: what is unmarked there counts as in flight.
    struct Look {
        uint64_t inflight;
        bool busy;             // something is queued or runs, marked or not; only if sampling
        bool held_up = false;  // a thread waits in a submission until a queue has room
    };
    Look look(bool sampling);
    Look look_at_marks();  // the same without a call for any stream, taken to be busy
    uint64_t poll();       // the same of a client that must stop or has stopped: all is marked

    uint64_t launches();  // so far, on all streams

    // Totals so far. Work is the estimated time of the completed launches, as exclusive time. Samples are taken at
    // moments that do not depend on the launches.
    struct Progress {
        uint64_t work_ns = 0, samples = 0, busy = 0, awaited = 0;
    };
    // Of the holder of a token; by the watcher alone. `samples` that it stands for.
    void sample(Look look, bool awaited, uint64_t samples);
    Progress progress();

    // Nothing was completed for much longer than the running unit should take: it waits for the host, maybe for a
    // thread that waits for the token.
    bool stuck();

    uint64_t inflight() const { return inflight_.load(std::memory_order_relaxed); }

    bool may_sample();  // as far as its budget is concerned
    // Records the begin event of a timed launch. False if the launch cannot be timed now (capture, no events
    // left).
    bool begin_sample(Stream& stream, uint64_t key, bool first, Sample& sample);
    void end_sample(Stream& stream, Sample& sample);

    // Everything launched on the stream so far is known to be complete.
    void settled(Stream& stream);

    // For a capture that has been counted: returns when no look records any more. One that takes a second is in the
    // driver and waits for a queue to have room; its record came before the capture.
    void barrier();

    void add_stream(Stream* stream, const std::atomic<wire::ClientPage*>& page);
    void set_page(wire::ClientPage* page);  // of every stream
    void set_gate(MoveGate* gate);          // of every stream, also of those to come
    std::vector<CUcontext> contexts();      // that work was submitted to
    void forget(CUcontext context);
    void forget(Stream& stream);

  private:
    struct Mark {
        Stream* stream;
        CUcontext context;
        CUevent event;
        uint64_t nanoseconds;
        uint32_t launches;
    };

    CUevent take_event(CUcontext context, bool timing);
    void give_event(CUcontext context, bool timing, CUevent event);
    // The caller holds the stream's `recording`, and `lock`, of `mutex_`, which is let go while the driver is asked.
    void record(Stream& stream, std::unique_lock<std::mutex>& lock);
    bool knows(const Stream* stream) const;
    std::vector<Stream*> streams_of(CUcontext context);
    static bool is_empty(const Stream& stream);  // nothing left to run, marked or not
    uint64_t queued() const;                     // launches that are not known to be complete
    static bool holds_up(const Stream& stream);  // the thread that submits to it
    // Estimated rest of work that no thread can mark now, because its thread waits for the token itself or is
    // gone, or a capture is in progress. It is taken to run as estimated. If it counted for ever, a stop would
    // never be reported and its thread would never go on.
    Look look(bool sampling, bool mark_all);
    static uint64_t left_unmarked(Stream& stream, uint64_t now);
    void reap();
    void learn();
    uint64_t give_up_at(uint64_t now) const;
    void wait_for_room(std::unique_lock<std::mutex>& lock, Waits& waits, uint64_t window_ns);
    void wait_for_last_moment(std::unique_lock<std::mutex>& lock, Waits& waits, uint64_t window_ns);

    SampleBudget budget_;
    std::mutex recording_;  // by a look, on whichever stream; taken without waiting
    std::mutex mutex_;
    std::deque<Mark> marks_;
    // What the marks stand for that are being recorded.
    uint64_t recording_ns_ = 0;
    uint32_t recording_launches_ = 0;
    std::vector<Sample> samples_;
    std::vector<Stream*> streams_;
    std::vector<Stream*> looked_at_;  // those of a look that records
    MoveGate* gate_ = nullptr;
    struct Pool {
        CUcontext context;
        std::vector<CUevent> timed, untimed;
    };
    std::vector<Pool> pools_;
    uint64_t past_launches_ = 0;  // on streams that are gone
    Progress progress_;
    uint64_t running_since_ = 0;  // when the oldest mark began to run, as far as was seen
    std::atomic<uint64_t> inflight_{0};
};

}  // namespace gemlet::hook
