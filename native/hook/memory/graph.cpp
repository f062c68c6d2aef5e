// Memory of graph allocation nodes: the driver keeps one pool of it per device, which grows when a graph with such
// nodes is launched and shrinks when it is trimmed.
#include <array>
#include <mutex>
#include <new>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/memory/accounting.h"
#include "hook/submit/current_context.h"
#include "hook/submit/gate.h"
#include "hook/submit/launch.h"

namespace gemlet::hook {

namespace {

struct GraphMemory {
    std::mutex mutex;
    uint64_t accounted = 0;
    bool used = false;
};

using Devices = std::array<GraphMemory, 64>;

Devices& devices() {
    static auto* all = new Devices;
    return *all;
}

GraphMemory* on(CUdevice device) {
    return device >= 0 && static_cast<size_t>(device) < devices().size() ? &devices()[static_cast<size_t>(device)]
                                                                         : nullptr;
}

void settle(CUdevice device, GraphMemory& memory) {
    RelaxedCapture relaxed;
    cuuint64_t now = 0;
    auto get = own().cuDeviceGetGraphMemAttribute;
    if (!get || get(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) != CUDA_SUCCESS) return;
    if (now > memory.accounted) account(device, now - memory.accounted);
    if (now < memory.accounted) give_back(device, memory.accounted - now);
    memory.accounted = now;
}

}  // namespace

void graph_memory_changed(CUdevice device) {
    GraphMemory* memory = on(device);
    if (!memory) return;
    std::lock_guard lock(memory->mutex);
    if (!memory->used) has_elastic(device);
    memory->used = true;
    settle(device, *memory);
}

void refresh_graph_memory(CUdevice device) {
    GraphMemory* memory = on(device);
    if (!memory) return;
    std::lock_guard lock(memory->mutex);
    if (memory->used) settle(device, *memory);
}

void forget_graph_memory() {
    new (&devices()) Devices;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

namespace {

template <class Call>
CUresult upload(CUstream stream, bool per_thread, Call&& call) {
    const CUdevice device = device_of_stream(stream);
    if (!room_for_unknown(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = submit(stream, per_thread, copy_work(0, true), call);
    graph_memory_changed(device);
    return result;
}

}  // namespace

extern "C" {

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = real::cuDeviceGraphMemTrim(device);
    if (result == CUDA_SUCCESS) refresh_graph_memory(device);
    return result;
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
    return upload(stream, false, [&] { return real::cuGraphUpload(graph, stream); });
}

CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) {
    return upload(stream, true, [&] { return real::cuGraphUpload_ptsz(graph, stream); });
}

}  // extern "C"
