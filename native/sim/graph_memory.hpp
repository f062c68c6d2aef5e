// Memory of graph allocation nodes. A node has its addresses from the start, and memory from the first launch or
// upload on until its graph and all that was instantiated from it are gone; the device's graph pool keeps it until it
// is trimmed. Nodes of different graphs do not share memory, as the driver's may.
#pragma once

#include <cstdint>
#include <memory>

#include "backing.hpp"
#include "device.hpp"

namespace gemlet::sim {

class GraphRange {
  public:
    GraphRange(Device& device, uint64_t bytes);  // CUDA_ERROR_OUT_OF_MEMORY
    ~GraphRange();
    GraphRange(const GraphRange&) = delete;
    GraphRange& operator=(const GraphRange&) = delete;

    uintptr_t base() const { return base_; }
    uint64_t bytes() const { return bytes_; }
    void back(void* context);  // with memory; CUDA_ERROR_OUT_OF_MEMORY

  private:
    Device& device_;
    uint64_t bytes_;
    uintptr_t base_;
    std::shared_ptr<Backing> backing_;
};

struct GraphPool {
    uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};
GraphPool graph_pool(Device& device);
void reset_graph_pool_highs(Device& device, bool used, bool reserved);
void trim_graph_pool(Device& device);

}  // namespace gemlet::sim
