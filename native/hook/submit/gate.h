// What every submission passes: the token, then the driver, then the accounting.
//
// While the token is held the path costs a handful of loads and two stores: no lock, no clock, no allocation. The
// calling thread itself waits; work is never handed to another thread, so order, errors and parameters stay the
// driver's business.
#pragma once

#include <optional>
#include <utility>

#include "hook/submit/device.h"
#include "hook/submit/move_gate.h"
#include "hook/submit/streams.h"
#include "hook/submit/token.h"

namespace gemlet::hook {

// What a submission is expected to take. Kernels and graphs are looked up by key; copies are estimated by their size.
struct Work {
    uint64_t key = 0;
    uint64_t nanoseconds = 0;
    bool elsewhere = false;  // not on the stream's device alone, as of a graph; copies may always be so
};

inline Work kernel_work(const void* function, uint64_t x, uint64_t y, uint64_t z) {
    return {Estimates::key(function, x * y * z), 0};
}
inline Work graph_work(const void* graph) {
    return {Estimates::key(graph, 1), 0};
}

// Conservative rates (an H200 moves 55 GB/s over PCIe and 2.1 TB/s within itself): an estimate that is too long
// only makes the queue a little shorter.
inline Work copy_work(uint64_t bytes, bool over_the_link) {
    return {0, 2'000 + (over_the_link ? bytes / 25 : bytes / 1'000)};
}

// Behind the fast path: marks, and gives the token back if its time is over.
[[gnu::noinline]] void after_window(Device& device, Stream& stream, uint64_t window_ns);

// However short their estimates: an estimate may be wrong.
inline constexpr uint32_t kMaxUnmarked = 512;

// What one launch is charged.
inline void account(Stream& stream, const wire::ClientPage& page, uint64_t ns, bool quiet) {
    constexpr auto relaxed = std::memory_order_relaxed;
    const uint64_t unmarked_ns = stream.unmarked_ns.load(relaxed) + ns;
    const uint32_t unmarked = stream.unmarked.load(relaxed) + 1;
    stream.launches.store(stream.launches.load(relaxed) + 1, relaxed);
    stream.unmarked_ns.store(unmarked_ns, relaxed);
    stream.unmarked.store(unmarked, relaxed);
    const uint64_t window = page.window_ns.load(relaxed);
    if ((unmarked_ns >= window / 3 || unmarked >= kMaxUnmarked) && !quiet) [[unlikely]]
        after_window(*stream.device, stream, window);
}

template <class Call>
inline CUresult call_driver(Stream& stream, Call& call) {
    const Submitting submitting(stream);
    return call();
}

// A launch whose estimate is not at hand: it is looked up, and now and then measured.
template <class Call>
[[gnu::noinline]] CUresult submit_looked_up(Stream& stream, wire::ClientPage& page, uint64_t key, bool quiet,
                                            Call& call) {
    constexpr auto relaxed = std::memory_order_relaxed;
    Pacer& pacer = stream.device->pacer;
    auto& estimate = pacer.estimates.find(key);
    // What is queued goes ahead of a latency client, so there no estimate is a guess.
    const bool exact = page.window_ns.load(relaxed) <= Pacer::kLatencyWindow;
    Sample sample;
    bool sampled = false;
    if (Estimates::count(estimate, key)) {
        const bool first = estimate.nanoseconds.load(relaxed) == Estimates::kUnknown;
        const bool must = exact || (!first && Estimates::doubted(estimate));
        sampled = !quiet && (must || pacer.may_sample()) && pacer.begin_sample(stream, key, first, sample);
        if (quiet) Estimates::sample_next(estimate);
    }
    const uint64_t ns = exact ? estimate.nanoseconds.load(relaxed) : pacer.estimates.expected(estimate);
    const CUresult result = call_driver(stream, call);
    if (sampled) pacer.end_sample(stream, sample);
    stream.memo_key.store(key, relaxed);
    stream.memo_ns.store(ns, relaxed);
    stream.memo_left.store(Estimates::take(estimate), relaxed);
    account(stream, page, ns, quiet);
    return result;
}

// The token is held: to the driver, and into the accounting.
template <class Call>
inline CUresult submit_holding(Stream& stream, wire::ClientPage& page, Work work, bool quiet, Call& call) {
    constexpr auto relaxed = std::memory_order_relaxed;
    if (page.window_ns.load(relaxed) == wire::kNever) return call();  // no daemon governs this device

    uint64_t ns = work.nanoseconds;
    if (work.key) {
        const uint32_t left = stream.memo_left.load(relaxed);
        if (left == 0 || stream.memo_key.load(relaxed) != work.key)
            return submit_looked_up(stream, page, work.key, quiet, call);
        stream.memo_left.store(uint16_t(left - 1), relaxed);
        ns = stream.memo_ns.load(relaxed);
    }
    const CUresult result = call_driver(stream, call);
    account(stream, page, ns, quiet);
    return result;
}

// Where this process's memory can move: the token is looked at and the work submitted with the gate held open.
template <class Call>
[[gnu::noinline]] CUresult submit_past(MoveGate& gate, Stream& stream, CUstream meant_handle, Work work, Call& call) {
    const int own_devices = gate.has_space() ? 1 : 0;
    const bool elsewhere =
        (work.key == 0 || work.elsewhere) && swap_devices.load(std::memory_order_relaxed) > own_devices;
    struct Leave {
        MoveGate& gate;
        uint64_t others;
        ~Leave() {
            if (others) swap_leave_others(others);
            gate.leave();
        }
    };
    const bool quiet = launch_state.captures.load(std::memory_order_relaxed) != 0;
    if (quiet && is_capturing(meant_handle)) return call();
    for (;;) {
        if (!gate.enter()) {
            swap_await_open(gate);
            continue;
        }
        const std::optional<uint64_t> others = elsewhere ? swap_enter_others(gate) : 0;
        if (!others) continue;
        {
            Leave leave{gate, *others};
            wire::ClientPage* page = stream.page.load(std::memory_order_acquire);
            if (wire::token_state(page->token.load(std::memory_order_acquire)) == wire::TokenState::kRun)
                return submit_holding(stream, *page, work, quiet, call);
        }
        if (!wait_for_token(*stream.device)) return no_token();
    }
}

// No stream that the hook knows: there is no context, as the driver will say, or the device is beyond it.
template <class Call>
[[gnu::noinline, gnu::cold]] CUresult submit_unknown(Call& call) {
    return passes_unknown() ? call() : CUDA_ERROR_SYSTEM_NOT_READY;
}

template <class Call>
CUresult submit(CUstream handle, bool per_thread, Work work, Call&& call) {
    constexpr auto relaxed = std::memory_order_relaxed;
    Stream* stream = stream_for(handle, per_thread);
    if (!stream) [[unlikely]]
        return submit_unknown(call);
    if (MoveGate* gate = stream->gate.load(std::memory_order_acquire)) [[unlikely]]
        return submit_past(*gate, *stream, meant(handle, per_thread), work, call);
    const bool quiet = launch_state.captures.load(relaxed) != 0;
    if (quiet) [[unlikely]] {
        if (is_capturing(meant(handle, per_thread))) return call();
    }

    wire::ClientPage* page = stream->page.load(std::memory_order_acquire);
    if (wire::token_state(page->token.load(std::memory_order_acquire)) != wire::TokenState::kRun) [[unlikely]] {
        if (!wait_for_token(*stream->device)) return no_token();
        page = stream->page.load(std::memory_order_acquire);
    }
    return submit_holding(*stream, *page, work, quiet, call);
}

}  // namespace gemlet::hook
