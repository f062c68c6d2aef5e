// Stream capture: which streams are recorded into which graph, and what is forbidden meanwhile.
#pragma once

#include <set>
#include <thread>

#include "graph.hpp"

namespace gemlet::sim {

class Capture {
  public:
    CUgraph graph = nullptr;
    bool graph_is_callers = false;  // cuStreamBeginCaptureToGraph
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    bool invalid = false;
    unsigned long long id = 0;
    std::thread::id thread;
    CUstream origin = nullptr;
    std::set<CUstream> streams;
};

bool capturing(CUstream stream);

// --- checks that entry points make first; each invalidates what it violates, as the driver does
void forbid_during_capture();               // "potentially unsafe" calls, by the thread's capture mode
void forbid_on_capturing(CUstream stream);  // synchronising or querying the stream itself
void forbid_on_capturing_context(CUcontext context);
void forbid_implicit(CUstream stream);  // work on the legacy stream while a blocking stream captures

void capture_step(CUstream stream, Step step);
void capture_record(CUstream stream, CUevent event);
void capture_await(CUstream stream, CUevent event);
void capture_child(CUstream stream, CUgraph graph);
// Ends what a stream that is being destroyed was part of.
void capture_forget(CUstream stream);
inline bool was_captured(CUevent event) {
    return !event->capture.expired();
}

}  // namespace gemlet::sim
