// Kernels, graphs, and the streams they go to.
#include <algorithm>
#include <vector>

#include "hook/link/clock.h"
#include "hook/lookup/driver.h"
#include "hook/submit/current_context.h"
#include "hook/submit/gate.h"
#include "hook/submit/launch.h"
#include "hook/submit/multiprocessors.h"

using namespace gemlet::hook;

namespace gemlet::hook {

namespace {

// The daemon's bound is for the end of a turn. Before, a longer queue keeps the device busy while the program's host
// does other things, as between the layers of a network. Not longer than a slice of the hardware's own: if the turn
// is cut short for somebody, its tail is not cut in many pieces.
constexpr uint64_t kMidTurn = 2'000'000;

uint64_t room(const Device& device, uint64_t window_ns) {
    const uint64_t deadline =
        device.page.load(std::memory_order_acquire)->deadline_ns.load(std::memory_order_relaxed);
    if (is_counted(device)) return kMidTurn;  // bounded by their number
    if (window_ns <= Pacer::kLatencyWindow) return window_ns;
    const uint64_t now = now_ns();
    const uint64_t half = deadline > now ? (deadline - now) / 2 : 0;  // of what is left of the turn
    return std::max(window_ns, std::min(half, kMidTurn));
}

}  // namespace

void after_window(Device& device, Stream& stream, uint64_t window_ns) {
    const uint64_t unit = stream.unmarked_ns.load(std::memory_order_relaxed);
    const uint64_t inflight = device.pacer.mark(stream, room(device, window_ns));
    // The next unit will be about as long as this one. A turn ends with the unit that ends nearest to its deadline;
    // with a latency client on the device it ends in time.
    const uint64_t ahead = window_ns <= Pacer::kLatencyWindow ? unit : unit / 2;
    check_deadline(device, inflight, ahead);
    check_submissions(device, inflight);
    make_way(device);
}

}  // namespace gemlet::hook

namespace {

// Graphs with allocation nodes take their memory when they are launched. It settles after the first few launches, so
// those are looked at, and then every 64th: the question costs a tenth of a launch.
void count_graph_memory() {
    static std::atomic<uint32_t> launches{0};
    const uint32_t n = launches.fetch_add(1, std::memory_order_relaxed);
    if (n < 8 || n % 64 == 0) graph_memory_changed(current_device());
}

// On the other devices of a launch it is accounted for by marks on the stream itself, behind all of the graph.
template <class Call>
struct OnOthers {
    Stream* const* others;
    size_t count;
    Work work;
    bool quiet;
    Call& call;

    CUresult operator()() const {
        if (count == 0) return call();
        Stream& one = **others;
        const OnOthers next{others + 1, count - 1, work, quiet, call};
        return submit_holding(one, *one.page.load(std::memory_order_acquire), work, quiet, next);
    }
};

bool has_token(const Stream& stream) {
    constexpr auto acquire = std::memory_order_acquire;
    return gemlet::wire::token_state(stream.page.load(acquire)->token.load(acquire)) ==
           gemlet::wire::TokenState::kRun;
}

// With nodes on several devices: it has the token of each before it waits for that of its stream's, as all of it goes
// to the driver at once.
template <class Call>
[[gnu::noinline]] CUresult submit_across(CUgraphExec graph, CUstream handle, bool per_thread, Call& call) {
    Work work = graph_work(graph);
    const bool quiet = launch_state.captures.load(std::memory_order_relaxed) != 0;
    const Stream* stream = stream_for(handle, per_thread);
    if (!stream || (quiet && is_capturing(meant(handle, per_thread)))) return submit(handle, per_thread, work, call);
    std::vector<Stream*> others;
    for (const CUdevice device : devices_of_graph(graph)) {
        Stream* other = device == stream->device->ordinal ? nullptr : stream_elsewhere(*stream, device);
        if (!other) continue;
        others.push_back(other);
        work.elsewhere = true;
        if (!has_token(*other) && !wait_for_token(*other->device)) return no_token();
    }
    return submit(handle, per_thread, work, OnOthers<Call>{others.data(), others.size(), work, quiet, call});
}

// A graph is one unit: it cannot be stopped half-way, so it is estimated and bounded as a whole.
template <class Call>
CUresult submit_graph(CUgraphExec graph, CUstream stream, bool per_thread, Call&& call) {
    if (graphs_span.load(std::memory_order_relaxed)) [[unlikely]]
        return submit_across(graph, stream, per_thread, call);
    return submit(stream, per_thread, graph_work(graph), call);
}

template <class Launch>
CUresult launch_graph(CUgraphExec graph, CUstream stream, bool per_thread, Launch&& launch) {
    CUresult result;
    if (graphs_allocate.load(std::memory_order_relaxed)) [[unlikely]] {
        GraphCharge memory(graph, stream, per_thread);
        if (!memory.fits()) return CUDA_ERROR_OUT_OF_MEMORY;
        result = launch();
        if (result == CUDA_SUCCESS) memory.launched();
    } else {
        result = launch();
    }
    count_graph_memory();
    return result;
}

// One launch on several devices: each passes its device's gate, and only then they go to the driver together.
CUresult launch_from(unsigned i, CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
    if (!list || i == count) return real::cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    const CUDA_LAUNCH_PARAMS& one = list[i];
    return submit(one.hStream, false, kernel_work(one.function, one.gridDimX, one.gridDimY, one.gridDimZ),
                  [&] { return launch_from(i + 1, list, count, flags); });
}

}  // namespace

// clang-format off
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
// clang-format on

extern "C" {

CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void** parameters, void** extra) {
    return submit(stream, false, kernel_work(f, gx, gy, gz),
                  [&] { return real::cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra); });
}

CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void** parameters, void** extra) {
    return submit(stream, true, kernel_work(f, gx, gy, gz), [&] {
        return real::cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
    });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
    if (!config) return real::cuLaunchKernelEx(config, f, parameters, extra);
    return submit(config->hStream, false, kernel_work(f, config->gridDimX, config->gridDimY, config->gridDimZ),
                  [&] { return explain_too_large(real::cuLaunchKernelEx(config, f, parameters, extra)); });
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
    if (!config) return real::cuLaunchKernelEx_ptsz(config, f, parameters, extra);
    return submit(config->hStream, true, kernel_work(f, config->gridDimX, config->gridDimY, config->gridDimZ),
                  [&] { return explain_too_large(real::cuLaunchKernelEx_ptsz(config, f, parameters, extra)); });
}

CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void** parameters) {
    return submit(stream, false, kernel_work(f, gx, gy, gz), [&] {
        return explain_too_large(
            real::cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters));
    });
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void** parameters) {
    return submit(stream, true, kernel_work(f, gx, gy, gz), [&] {
        return explain_too_large(
            real::cuLaunchCooperativeKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream, parameters));
    });
}

CUresult cuLaunch(CUfunction f) {
    return submit(nullptr, false, kernel_work(f, 1, 1, 1), [&] { return real::cuLaunch(f); });
}

CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    return submit(nullptr, false, kernel_work(f, unsigned(width), unsigned(height), 1),
                  [&] { return real::cuLaunchGrid(f, width, height); });
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    return submit(stream, false, kernel_work(f, unsigned(width), unsigned(height), 1),
                  [&] { return real::cuLaunchGridAsync(f, width, height, stream); });
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
    return launch_from(0, list, count, flags);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    return launch_graph(graph, stream, false, [&] {
        return submit_graph(graph, stream, false, [&] { return real::cuGraphLaunch(graph, stream); });
    });
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
    return launch_graph(graph, stream, true, [&] {
        return submit_graph(graph, stream, true, [&] { return real::cuGraphLaunch_ptsz(graph, stream); });
    });
}

CUresult cuStreamDestroy(CUstream stream) {
    stream_destroying(stream);
    return real::cuStreamDestroy(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    stream_destroying(stream);
    return real::cuStreamDestroy_v2(stream);
}

}  // extern "C"
