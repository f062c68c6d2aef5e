// Stream capture: the hook must do nothing of its own inside one, so it watches where captures begin and end.
#include "hook/lookup/driver.h"
#include "hook/submit/streams.h"
#include "hook/submit/swap_events.h"

using namespace gemlet::hook;

namespace {

template <class Call>
CUresult begin(CUstream handle, bool per_thread, Call&& call) {
    swap_capture_begins();
    capture_begins();
    swap_capture_counted();
    CUresult result = call();
    capture_began(meant(handle, per_thread), result == CUDA_SUCCESS);
    return result;
}

template <class Call>
CUresult end(CUstream handle, bool per_thread, Call&& call) {
    CUresult result = call();
    capture_ended(meant(handle, per_thread));
    return result;
}

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture(CUstream s) {
    return begin(s, false, [&] { return real::cuStreamBeginCapture(s); });
}
CUresult cuStreamBeginCapture_ptsz(CUstream s) {
    return begin(s, true, [&] { return real::cuStreamBeginCapture_ptsz(s); });
}
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
    return begin(s, false, [&] { return real::cuStreamBeginCapture_v2(s, mode); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode) {
    return begin(s, true, [&] { return real::cuStreamBeginCapture_v2_ptsz(s, mode); });
}
CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph graph, const CUgraphNode* nodes,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
    return begin(s, false, [&] { return real::cuStreamBeginCaptureToGraph(s, graph, nodes, edges, count, mode); });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph graph, const CUgraphNode* nodes,
                                          const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
    return begin(s, true,
                 [&] { return real::cuStreamBeginCaptureToGraph_ptsz(s, graph, nodes, edges, count, mode); });
}
CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                       CUgraphRecaptureCallback callback, void* data) {
    return begin(s, false, [&] { return real::cuStreamBeginRecaptureToGraph(s, mode, graph, callback, data); });
}
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                            CUgraphRecaptureCallback callback, void* data) {
    return begin(s, true, [&] { return real::cuStreamBeginRecaptureToGraph_ptsz(s, mode, graph, callback, data); });
}
CUresult cuStreamBeginCaptureToCig(CUstream s, CUstreamCigCaptureParams* parameters) {
    return begin(s, false, [&] { return real::cuStreamBeginCaptureToCig(s, parameters); });
}
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream s, CUstreamCigCaptureParams* parameters) {
    return begin(s, true, [&] { return real::cuStreamBeginCaptureToCig_ptsz(s, parameters); });
}
CUresult cuStreamEndCaptureToCig(CUstream s) {
    return end(s, false, [&] { return real::cuStreamEndCaptureToCig(s); });
}
CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) {
    return end(s, true, [&] { return real::cuStreamEndCaptureToCig_ptsz(s); });
}
CUresult cuStreamEndCapture(CUstream s, CUgraph* graph) {
    return end(s, false, [&] { return real::cuStreamEndCapture(s, graph); });
}
CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph* graph) {
    return end(s, true, [&] { return real::cuStreamEndCapture_ptsz(s, graph); });
}

}  // extern "C"
