// Memory of graph allocation nodes: the driver keeps one pool of it per device, which grows when a graph with such
// nodes is launched and shrinks when it is trimmed.
//
// What a graph may take is known when it is instantiated: the union of its nodes' addresses, for nodes that do not
// live at the same time share them. Its first launch or upload (and the first after a trim) reserves as much of it as
// the pool has not in store, or fails; afterwards what the driver says it took is booked instead.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/memory/accounting.h"
#include "hook/memory/graph_devices.h"
#include "hook/memory/shared_growth.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/submit/gate.h"
#include "hook/submit/launch.h"

namespace gemlet::hook {

namespace {

struct GraphMemory {
    std::mutex mutex;
    uint64_t accounted = 0;
    uint64_t pending = 0;  // for graphs that are being launched, in what it has or in what it grows by
    bool used = false;
    uint64_t trims = 0;
};

// What one graph's nodes allocate on one device.
struct GraphNeed {
    CUdevice device;
    uint64_t bytes;
    uint64_t backed_at = UINT64_MAX;  // the number of trims when it was launched; it has its memory since then
};

struct Instantiated {
    std::mutex mutex;
    std::unordered_map<const void*, std::vector<GraphNeed>> needs;  // of those that allocate, by handle
};

Instantiated& instantiated() {
    static auto* all = new Instantiated;
    return *all;
}

using Devices = std::array<GraphMemory, 64>;

Devices& devices() {
    static auto* all = new Devices;
    return *all;
}

GraphMemory* on(CUdevice device) {
    return device >= 0 && static_cast<size_t>(device) < devices().size() ? &devices()[static_cast<size_t>(device)]
                                                                         : nullptr;
}

// None: the driver does not say.
std::optional<uint64_t> attribute(CUdevice device, CUgraphMem_attribute which) {
    RelaxedCapture relaxed;
    cuuint64_t value = 0;
    auto get = own().cuDeviceGetGraphMemAttribute;
    if (!get || get(device, which, &value) != CUDA_SUCCESS) return std::nullopt;
    return value;
}

using Ranges = std::map<CUdevice, std::vector<std::pair<uint64_t, uint64_t>>>;

void collect_ranges(CUgraph graph, Ranges& ranges) {
    size_t count = 0;
    if (own().cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
    std::vector<CUgraphNode> nodes(count);
    if (own().cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
    for (size_t i = 0; i < count; ++i) {
        CUgraphNodeType type;
        if (own().cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) continue;
        CUgraph child = nullptr;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && own().cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            collect_ranges(child, ranges);
        CUDA_MEM_ALLOC_NODE_PARAMS p{};
        if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            own().cuGraphMemAllocNodeGetParams(nodes[i], &p) != CUDA_SUCCESS ||
            p.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            continue;
        ranges[p.poolProps.location.id].emplace_back(p.dptr, p.dptr + p.bytesize);
    }
}

// In blocks of the driver's.
uint64_t union_of(std::vector<std::pair<uint64_t, uint64_t>> ranges) {
    std::sort(ranges.begin(), ranges.end());
    uint64_t bytes = 0, end = 0;
    for (auto [from, to] : ranges) {
        from = std::max(from / kBlock * kBlock, end);
        end = std::max(end, round_up(to, kBlock));
        bytes += end > from ? end - from : 0;
    }
    return bytes;
}

// `handle`: of what it was made of `graph`, or of itself.
void remember(const void* handle, CUgraph graph) {
    remember_devices(handle, graph);
    const auto& d = own();
    if (!d.cuGraphGetNodes || !d.cuGraphNodeGetType || !d.cuGraphMemAllocNodeGetParams ||
        !d.cuGraphChildGraphNodeGetGraph)
        return;
    Ranges ranges;
    collect_ranges(graph, ranges);
    std::vector<GraphNeed> needs;
    for (auto& [device, found] : ranges) needs.push_back({.device = device, .bytes = union_of(std::move(found))});
    Instantiated& all = instantiated();
    std::lock_guard lock(all.mutex);
    if (needs.empty()) {
        all.needs.erase(handle);  // one that is gone had the same handle
    } else {
        all.needs[handle] = std::move(needs);
        graphs_allocate.store(true, std::memory_order_relaxed);
    }
}

std::vector<GraphNeed> needs_of(const void* handle) {
    std::lock_guard lock(instantiated().mutex);
    const auto found = instantiated().needs.find(handle);
    return found == instantiated().needs.end() ? std::vector<GraphNeed>{} : found->second;
}

void settle(CUdevice device, GraphMemory& memory) {
    const auto reserved = attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    if (!reserved) return;
    uint64_t now = *reserved;
    // What a trim gave back meanwhile is taken again for those that were to have it.
    if (memory.pending > 0) {
        const uint64_t used = attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT).value_or(0);
        now = std::max(now, std::min(memory.accounted, used + memory.pending));
    }
    if (now > memory.accounted) account(device, now - memory.accounted);
    if (now < memory.accounted) give_back(device, memory.accounted - now);
    memory.accounted = now;
}

void end_launch(GraphMemory& memory, uint64_t bytes) {
    std::lock_guard lock(memory.mutex);
    memory.pending -= bytes;
}

struct Charge {
    uint64_t growth, trims;
};

// None: over the limit.
std::optional<Charge> begin_launch(GraphMemory& memory, const GraphNeed& need) {
    Charge found{};
    const auto begin = [&] {
        std::lock_guard lock(memory.mutex);
        const uint64_t reserved = attribute(need.device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT).value_or(0);
        const uint64_t used = attribute(need.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT).value_or(0);
        const uint64_t taken = used + memory.pending;
        found = {need.bytes - std::min(need.bytes, reserved - std::min(reserved, taken)), memory.trims};
        return Growth{found.growth, std::exchange(memory.pending, memory.pending + need.bytes)};
    };
    if (!charge_growth(need.device, begin, [&] { end_launch(memory, need.bytes); })) return std::nullopt;
    return found;
}

bool is_backed(GraphMemory& memory, const GraphNeed& need) {
    std::lock_guard lock(memory.mutex);
    return need.backed_at == memory.trims;
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
    new (&instantiated()) Instantiated;
    forget_devices();
}

std::atomic<bool> graphs_allocate{false};

GraphCharge::GraphCharge(const void* graph) : graph_(graph) {
    for (const GraphNeed& need : needs_of(graph)) {
        GraphMemory* memory = on(need.device);
        if (!memory) continue;
        if (is_backed(*memory, need)) continue;
        const std::optional<Charge> found = begin_launch(*memory, need);
        if (!found) {
            fits_ = false;
            return;
        }
        charged_.push_back(
            {.device = need.device, .bytes = need.bytes, .growth = found->growth, .trims = found->trims});
    }
}

GraphCharge::~GraphCharge() {
    for (const Part& part : charged_) {
        end_launch(*on(part.device), part.bytes);
        graph_memory_changed(part.device);  // first, so that nobody takes the room in between
        give_back(part.device, part.growth);
    }
}

void GraphCharge::launched() {
    if (charged_.empty()) return;
    std::lock_guard lock(instantiated().mutex);
    const auto found = instantiated().needs.find(graph_);
    if (found == instantiated().needs.end()) return;
    for (const Part& part : charged_)
        for (GraphNeed& need : found->second)
            if (need.device == part.device) need.backed_at = part.trims;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

namespace {

template <class Call>
CUresult upload(CUgraphExec graph, CUstream stream, bool per_thread, Call&& call) {
    const CUdevice device = device_of_stream(stream);
    if (!room_for_unknown(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    GraphCharge memory(graph);
    if (!memory.fits()) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = submit(stream, per_thread, copy_work(0, true), call);
    if (result == CUDA_SUCCESS) memory.launched();
    graph_memory_changed(device);
    return result;
}

template <class Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Call&& call,
                     const CUDA_GRAPH_INSTANTIATE_PARAMS* params = {}) {
    CUresult result;
    if (params && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
        remember(graph, graph);
        const GraphCharge memory(graph);
        if (!memory.fits()) return CUDA_ERROR_OUT_OF_MEMORY;
        result = call();
    } else {
        result = call();
    }
    if (result == CUDA_SUCCESS && exec) remember(*exec, graph);
    return result;
}

}  // namespace

extern "C" {

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = real::cuDeviceGraphMemTrim(device);
    if (GraphMemory* memory = on(device); memory && result == CUDA_SUCCESS) {
        {
            std::lock_guard lock(memory->mutex);
            ++memory->trims;
        }
        refresh_graph_memory(device);
    }
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* node, char* log, size_t size) {
    return instantiate(exec, graph, [&] { return real::cuGraphInstantiate(exec, graph, node, log, size); });
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* node, char* log, size_t size) {
    return instantiate(exec, graph, [&] { return real::cuGraphInstantiate_v2(exec, graph, node, log, size); });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    return instantiate(exec, graph, [&] { return real::cuGraphInstantiateWithFlags(exec, graph, flags); });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    return instantiate(exec, graph, [&] { return real::cuGraphInstantiateWithParams(exec, graph, params); }, params);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    return instantiate(
        exec, graph, [&] { return real::cuGraphInstantiateWithParams_ptsz(exec, graph, params); }, params);
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
    return upload(graph, stream, false, [&] { return real::cuGraphUpload(graph, stream); });
}

CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) {
    return upload(graph, stream, true, [&] { return real::cuGraphUpload_ptsz(graph, stream); });
}

}  // extern "C"
