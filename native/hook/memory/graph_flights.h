// Which graphs with allocation nodes may hold memory of the store that the driver keeps for graphs of a device, and
// so what a launch finds there. As measured on an H200 with driver 580: graphs on one stream share memory, and so do
// those of which one is launched when the other has ended. Those on other streams do not, even if events make them
// follow one another. A graph has the same memory each time, unless another has it. What a graph leaves behind is its
// own until it is freed.
//
// Nothing here is safe for threads by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "hook/lookup/cuda_api.h"
#include "hook/memory/stream_end.h"

namespace gemlet::hook {

struct GraphLaunch {
    const void* graph;  // as instantiated
    const void* lane;   // of the stream, the same for all handles of it
    CUstream stream;    // by a handle that means it in every call
    CUcontext context;  // of the stream
};

class GraphFlights {
  public:
    // Bytes that others than this one may hold, but for those before it on its stream. They are no less than what is
    // held: graphs on one other stream are counted each.
    uint64_t others(const GraphLaunch& launch) const;
    uint64_t begun() const;  // bytes of those that are being launched

    void begin(const GraphLaunch& launch, uint64_t bytes);
    // After begin(): it did not succeed; or it did, with what it leaves behind and an event behind it.
    void cancel(const GraphLaunch& launch);
    void end(const GraphLaunch& launch, const std::vector<CUdeviceptr>& left, StreamEnd end);
    void freed(CUdeviceptr left);
    void forget_those_over();             // asks the driver
    void handle_free(const void* graph);  // it was destroyed, perhaps before it had ended
    void context_is_gone(CUcontext context);
    void streams_are_gone(CUcontext context);  // of a green context: what it left is still there

  private:
    struct Flight {
        GraphLaunch launch;
        uint64_t bytes;
        int launching = 0;
        bool launched = false, over = false;
        StreamEnd end = {};  // without an event it counts until its context is gone
        std::vector<CUdeviceptr> left;
    };
    std::vector<Flight> flights_;

    Flight* find(const void* graph);
    static bool is_over(const Flight& flight);
};

}  // namespace gemlet::hook
