#include "capture.hpp"

#include <algorithm>

namespace gemlet::sim {
namespace {

std::mutex captures_mutex;
std::vector<std::shared_ptr<Capture>>& captures() {
    static auto* all = new std::vector<std::shared_ptr<Capture>>;
    return *all;
}
std::atomic<unsigned long long> next_capture_id{1};
std::atomic<int> captures_active{0};  // the common case, none, must cost one load
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void invalidate(Capture& capture) {
    capture.invalid = true;
}

void check_valid(CUstream stream) {
    check(!stream->capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void leave(CUstream stream) {
    stream->capture = nullptr;
    stream->capture_tail.clear();
    stream->capture_origin = false;
}

void add_once(std::vector<CUgraphNode>& nodes, const std::vector<CUgraphNode>& more) {
    for (CUgraphNode node : more)
        if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
}

void begin(CUstream s, CUgraph graph, bool callers, std::vector<CUgraphNode> tail, CUstreamCaptureMode mode) {
    check(mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
          mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    check(s != s->context->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    check(!capturing(s), CUDA_ERROR_ILLEGAL_STATE);
    auto capture = std::make_shared<Capture>();
    capture->graph = graph != nullptr ? graph : new_graph();
    capture->graph_is_callers = callers;
    capture->mode = mode;
    capture->id = next_capture_id++;
    capture->thread = std::this_thread::get_id();
    capture->origin = s;
    capture->streams.insert(s);
    s->capture_tail = std::move(tail);
    s->capture_origin = true;
    s->capture = capture;
    const std::lock_guard guard(captures_mutex);
    captures().push_back(std::move(capture));
    ++captures_active;
}

// Removes the capture from all its streams. The graph stays with the caller.
void dissolve(const std::shared_ptr<Capture>& capture) {
    for (CUstream stream : capture->streams) leave(stream);
    const std::lock_guard guard(captures_mutex);
    std::erase(captures(), capture);
    --captures_active;
}

// Every joined stream's last node must lead back into the origin.
bool joined(const Capture& capture, CUstream origin) {
    std::set<CUgraphNode> reached;
    std::vector<CUgraphNode> open = origin->capture_tail;
    while (!open.empty()) {
        CUgraphNode node = open.back();
        open.pop_back();
        if (!reached.insert(node).second) continue;
        open.insert(open.end(), node->after.begin(), node->after.end());
    }
    for (CUstream stream : capture.streams)
        for (CUgraphNode node : stream->capture_tail)
            if (!reached.contains(node)) return false;
    return true;
}

CUresult end(CUstream s, CUgraph* result) {
    check(result != nullptr);
    *result = nullptr;
    check(capturing(s), CUDA_ERROR_ILLEGAL_STATE);
    const std::shared_ptr<Capture> capture = s->capture;
    check(s->capture_origin, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    check(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->thread == std::this_thread::get_id(),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    const bool valid = !capture->invalid;
    const bool whole = joined(*capture, s);
    dissolve(capture);
    if (valid && whole) {
        *result = capture->graph;
        return CUDA_SUCCESS;
    }
    if (!capture->graph_is_callers) drop_graph(capture->graph);
    return valid ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

void info(CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
          size_t* count) {
    check(status != nullptr);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (s->capture == nullptr) return forbid_implicit(s);
    *status = s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (s->capture->invalid) return;
    if (id != nullptr) *id = s->capture->id;
    if (graph != nullptr) *graph = s->capture->graph;
    if (nodes != nullptr) *nodes = s->capture_tail.data();
    if (count != nullptr) *count = s->capture_tail.size();
}

CUresult update_dependencies(const char* name, CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
    return api(name, [&] {
        CUstream s = resolve_stream(stream);
        check(capturing(s), CUDA_ERROR_ILLEGAL_STATE);
        check_valid(s);
        check(flags <= CU_STREAM_SET_CAPTURE_DEPENDENCIES && (count == 0 || nodes != nullptr));
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) s->capture_tail.clear();
        add_once(s->capture_tail, std::vector<CUgraphNode>(nodes, nodes + count));
    });
}

}  // namespace

bool capturing(CUstream stream) {
    return stream->capture != nullptr;
}

void forbid_during_capture() {
    if (captures_active.load(std::memory_order_relaxed) == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    bool forbidden = false;
    const std::lock_guard guard(captures_mutex);
    for (const auto& capture : captures()) {
        const bool own = capture->thread == std::this_thread::get_id();
        const bool concerns =
            own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!concerns) continue;
        invalidate(*capture);
        forbidden = true;
    }
    check(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void forbid_on_capturing(CUstream stream) {
    if (!capturing(stream)) return;
    invalidate(*stream->capture);
    fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void forbid_on_capturing_context(CUcontext context) {
    if (captures_active.load(std::memory_order_relaxed) == 0) return;
    bool forbidden = false;
    const std::lock_guard guard(captures_mutex);
    for (const auto& capture : captures()) {
        if (capture->origin->context != context) continue;
        invalidate(*capture);
        forbidden = true;
    }
    check(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void forbid_implicit(CUstream stream) {
    if (captures_active.load(std::memory_order_relaxed) == 0 || stream != stream->context->legacy) return;
    bool forbidden = false;
    const std::lock_guard guard(captures_mutex);
    for (const auto& capture : captures())
        for (CUstream other : capture->streams) {
            if (other->context != stream->context || (other->flags & CU_STREAM_NON_BLOCKING) != 0) continue;
            invalidate(*capture);
            forbidden = true;
        }
    check(!forbidden, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

void capture_step(CUstream stream, Step step) {
    check_valid(stream);
    const auto& tail = stream->capture_tail;
    CUgraphNode node = add_node(stream->capture->graph, tail.data(), tail.size(), std::move(step));
    stream->capture_tail = {node};
}

void capture_record(CUstream stream, CUevent event) {
    check_valid(stream);
    event->capture = stream->capture;
    event->capture_nodes = stream->capture_tail;
}

void capture_await(CUstream stream, CUevent event) {
    const auto capture = event->capture.lock();
    if (capture == nullptr) {  // an event from outside: a capture may not depend on it
        invalidate(*stream->capture);
        fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (stream->capture != nullptr && stream->capture != capture) {
        invalidate(*stream->capture);
        invalidate(*capture);
        fail(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    check(!capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check(stream != stream->context->legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (stream->capture == nullptr) {
        stream->capture = capture;
        stream->capture_origin = false;
        capture->streams.insert(stream);
    }
    add_once(stream->capture_tail, event->capture_nodes);
}

void capture_child(CUstream stream, CUgraph graph) {
    ChildStep child{clone_graph(graph)};
    child.graph->owned = true;
    capture_step(stream, child);
}

void capture_forget(CUstream stream) {
    if (!capturing(stream)) return;
    const auto capture = stream->capture;
    invalidate(*capture);
    if (stream->capture_origin) {
        dissolve(capture);
        if (!capture->graph_is_callers) drop_graph(capture->graph);
    } else {
        capture->streams.erase(stream);
        leave(stream);
    }
}

}  // namespace gemlet::sim

using namespace gemlet::sim;

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return api(__func__, [&] { begin(resolve_stream(stream), nullptr, false, {}, mode); });
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return api(__func__, [&] { begin(resolve_stream(stream), nullptr, false, {}, CU_STREAM_CAPTURE_MODE_GLOBAL); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*,
                                     size_t count, CUstreamCaptureMode mode) {
    return api(__func__, [&] {
        check(count == 0 || after != nullptr);
        begin(resolve_stream(stream), checked(graph), true, std::vector<CUgraphNode>(after, after + count), mode);
    });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    return api(__func__, [&] { return end(resolve_stream(stream), graph); });
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return api(__func__, [&] { info(resolve_stream(stream), status, nullptr, nullptr, nullptr, nullptr); });
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
    return api(__func__, [&] { info(resolve_stream(stream), status, id, nullptr, nullptr, nullptr); });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, size_t* count) {
    return api(__func__, [&] { info(resolve_stream(stream), status, id, graph, nodes, count); });
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
    return api(__func__, [&] {
        if (edges != nullptr) *edges = nullptr;  // no edge of ours carries data
        info(resolve_stream(stream), status, id, graph, nodes, count);
    });
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
    return update_dependencies(__func__, stream, nodes, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*,
                                              size_t count, unsigned flags) {
    return update_dependencies(__func__, stream, nodes, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return api(__func__, [&] {
        check(mode != nullptr && *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
        std::swap(*mode, thread_mode);
    });
}

}  // extern "C"
