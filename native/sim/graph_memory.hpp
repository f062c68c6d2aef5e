// Memory of graph allocation nodes. A node has its addresses from the start; which memory is there is chosen at each
// launch or upload, in blocks of the device's store, as on an H200 with driver 580: what the node had before, if it
// is free or held by the same stream alone; else a free block; else one that the same stream holds; else a new one.
// The store keeps blocks until it is trimmed. Only what they take is shared: nodes of different graphs see bytes of
// their own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backing.hpp"
#include "device.hpp"
#include "work.hpp"

namespace gemlet::sim {

struct GraphBlock {
    const Queue* lane = nullptr;  // the stream that had it last
    const void* range = nullptr;  // and whose memory it was
    OpRef last;                   // the end of that
    int launching = 0;
    bool left = false;     // by a graph that does not free it
    bool trimmed = false;  // it is the device's no more

    bool is_free() const;
};

// One launch or upload. Its blocks are in use from back() on until what is said by begun() is done.
class GraphUse {
  public:
    explicit GraphUse(const Queue* lane) : lane_(lane) {}
    ~GraphUse();  // if it was not begun, nothing of it is in use
    GraphUse(const GraphUse&) = delete;
    GraphUse& operator=(const GraphUse&) = delete;
    void begun(OpRef last) { last_ = std::move(last); }

  private:
    friend class GraphRange;
    bool has(const GraphBlock& block) const;
    void take(std::shared_ptr<GraphBlock> block);

    const Queue* lane_;
    OpRef last_;
    std::vector<std::shared_ptr<GraphBlock>> blocks_;
};

class GraphRange {
  public:
    GraphRange(Device& device, uint64_t bytes);  // CUDA_ERROR_OUT_OF_MEMORY
    ~GraphRange();
    GraphRange(const GraphRange&) = delete;
    GraphRange& operator=(const GraphRange&) = delete;

    uintptr_t base() const { return base_; }
    uint64_t bytes() const { return bytes_; }
    // With memory; CUDA_ERROR_OUT_OF_MEMORY. `left`: the graph does not free it.
    void back(void* context, GraphUse& use, bool left);

  private:
    Device& device_;
    uint64_t bytes_;
    uintptr_t base_;
    std::shared_ptr<Backing> backing_;
    std::vector<std::shared_ptr<GraphBlock>> blocks_;
};

struct GraphPool {
    uint64_t reserved = 0, reserved_high = 0;
};
GraphPool graph_pool(Device& device);
void reset_graph_pool_high(Device& device);
void trim_graph_pool(Device& device);

}  // namespace gemlet::sim
