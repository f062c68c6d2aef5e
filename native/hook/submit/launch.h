// What launches tell the room above.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// After a graph with allocation nodes was instantiated or launched: what graphs hold is read from the driver anew
// (memory/graph.cpp).
void graph_memory_changed(CUdevice device);

// Whether a graph with allocation nodes was ever instantiated.
extern std::atomic<bool> graphs_allocate;

// Whether one was with nodes on another device than the one that was current then, and all devices of such a one
// (memory/graph_devices.cpp).
extern std::atomic<bool> graphs_span;
std::vector<CUdevice> devices_of_graph(const void* graph);

// Room in the group's limit for what the allocation nodes of a graph may take in a launch or upload, which stands
// beside it.
class GraphCharge {
  public:
    GraphCharge(const void* graph, CUstream stream, bool per_thread);  // as instantiated
    ~GraphCharge();
    GraphCharge(const GraphCharge&) = delete;
    GraphCharge& operator=(const GraphCharge&) = delete;
    bool fits() const { return fits_; }
    void launched() { launched_ = true; }

  private:
    struct Begun;
    std::unique_ptr<Begun> begun_;  // null: it neither allocates nor frees
    bool fits_ = true, launched_ = false;
};

}  // namespace gemlet::hook
