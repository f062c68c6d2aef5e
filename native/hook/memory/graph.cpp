// Memory of graph allocation nodes: the driver keeps one store of it per device, which grows when a graph with such
// nodes is launched and shrinks when it is trimmed.
//
// What a graph may take is known when it is instantiated: the union of its nodes' addresses, for nodes that do not
// live at the same time share them. A launch or upload reserves as much of it as the store may lack beside what other
// graphs may hold (graph_flights.h), or fails; afterwards what the driver says it took is booked instead.
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
#include "hook/memory/graph_flights.h"
#include "hook/memory/graph_nodes.h"
#include "hook/memory/location.h"
#include "hook/memory/shared_growth.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/submit/gate.h"
#include "hook/submit/launch.h"
#include "hook/submit/streams.h"

namespace gemlet::hook {

namespace {

constexpr uint64_t kGraphBlock = 32u << 20;  // what the store grows by (H200, driver 580)

struct GraphMemory {
    std::mutex mutex;
    uint64_t accounted = 0;
    GraphFlights flights;
    bool used = false;
};

// What one graph's nodes allocate on one device, and which of it they leave to others to free.
struct GraphNeed {
    CUdevice device;
    uint64_t bytes;
    std::vector<CUdeviceptr> left;
};

struct GraphNeeds {
    std::vector<GraphNeed> devices;
    std::vector<CUdeviceptr> freed;  // that other graphs left
};

struct Instantiated {
    std::mutex mutex;
    std::unordered_map<const void*, GraphNeeds> needs;  // of those that allocate or free, by handle
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

struct Range {
    uint64_t from, to;
};

struct Found {
    std::map<CUdevice, std::vector<Range>> allocated;
    std::vector<CUdeviceptr> freed;
};

Found collect(CUgraph graph) {
    Found found;
    each_node(graph, [&](CUgraphNode node, CUgraphNodeType type) {
        CUDA_MEM_ALLOC_NODE_PARAMS p{};
        CUdeviceptr freed = 0;
        if (type == CU_GRAPH_NODE_TYPE_MEM_FREE && own().cuGraphMemFreeNodeGetParams(node, &freed) == CUDA_SUCCESS)
            found.freed.push_back(freed);
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && own().cuGraphMemAllocNodeGetParams(node, &p) == CUDA_SUCCESS &&
            device_at(p.poolProps.location) >= 0)
            found.allocated[device_at(p.poolProps.location)].push_back({p.dptr, p.dptr + p.bytesize});
    });
    return found;
}

uint64_t union_of(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.from < b.from; });
    uint64_t bytes = 0, end = 0;
    for (auto [from, to] : ranges) {
        from = std::max(from / kGraphBlock * kGraphBlock, end);
        end = std::max(end, round_up(to, kGraphBlock));
        bytes += end > from ? end - from : 0;
    }
    return bytes;
}

GraphNeeds needs(CUgraph graph) {
    Found found = collect(graph);
    GraphNeeds needs;
    for (auto& [device, ranges] : found.allocated) {
        GraphNeed& need = needs.devices.emplace_back();
        need.device = device;
        need.bytes = union_of(ranges);
        for (const Range& range : ranges)
            if (std::erase(found.freed, range.from) == 0) need.left.push_back(range.from);
    }
    needs.freed = std::move(found.freed);
    return needs;
}

// `handle`: of what it was made of `graph`, or of itself. Another may have had it before.
void remember(const void* handle, CUgraph graph) {
    remember_devices(handle, graph);
    if (!can_list_nodes() || !own().cuGraphMemAllocNodeGetParams || !own().cuGraphMemFreeNodeGetParams) return;
    GraphNeeds found = needs(graph);
    Instantiated& all = instantiated();
    std::lock_guard lock(all.mutex);
    if (all.needs.erase(handle) > 0)
        for (GraphMemory& memory : devices()) {
            std::lock_guard memory_lock(memory.mutex);
            memory.flights.handle_free(handle);
        }
    if (found.devices.empty() && found.freed.empty()) return;
    all.needs[handle] = std::move(found);
    graphs_allocate.store(true, std::memory_order_relaxed);
}

GraphNeeds needs_of(const void* handle) {
    std::lock_guard lock(instantiated().mutex);
    const auto found = instantiated().needs.find(handle);
    return found == instantiated().needs.end() ? GraphNeeds{} : found->second;
}

void settle(CUdevice device, GraphMemory& memory) {
    const auto reserved = attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    if (!reserved) return;
    uint64_t now = *reserved;
    // What a trim gave back meanwhile is taken again for those that were to have it.
    if (const uint64_t begun = memory.flights.begun(); begun > 0) {
        const uint64_t used = attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT).value_or(0);
        now = std::max(now, std::min(memory.accounted, used + begun));
    }
    if (now > memory.accounted) account(device, now - memory.accounted);
    if (now < memory.accounted) give_back(device, memory.accounted - now);
    memory.accounted = now;
}

// None: over the limit.
std::optional<uint64_t> begin_launch(GraphMemory& memory, const GraphNeed& need, const GraphLaunch& launch) {
    uint64_t growth = 0;
    const auto missing = [&] {
        const uint64_t others = memory.flights.others(launch);
        return need.bytes - std::min(need.bytes, memory.accounted - std::min(memory.accounted, others));
    };
    // While others are under way it is not known what of it they will hold, nor when they end.
    const auto begin = [&] {
        std::lock_guard lock(memory.mutex);
        growth = missing();
        if (growth > 0) {
            memory.flights.forget_those_over();
            growth = missing();
        }
        const uint64_t others = memory.flights.others(launch);
        memory.flights.begin(launch, need.bytes);
        return Growth{growth, others};
    };
    const auto cancel = [&] {
        std::lock_guard lock(memory.mutex);
        memory.flights.cancel(launch);
    };
    if (!charge_growth(need.device, begin, cancel)) return std::nullopt;
    return growth;
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

void graph_memory_freed(CUdevice device, CUdeviceptr pointer) {
    GraphMemory* memory = on(device);
    if (!memory) return;
    std::lock_guard lock(memory->mutex);
    memory->flights.freed(pointer);
}

void forget_graph_memory(CUcontext context) {
    for (GraphMemory& memory : devices()) {
        std::lock_guard lock(memory.mutex);
        memory.flights.context_is_gone(context);
    }
}

void graph_streams_are_gone(CUcontext context) {
    for (GraphMemory& memory : devices()) {
        std::lock_guard lock(memory.mutex);
        memory.flights.streams_are_gone(context);
    }
}

struct GraphCharge::Begun {
    struct Part {
        GraphMemory* memory;
        GraphNeed need;
        uint64_t growth;
    };
    GraphLaunch launch;
    std::vector<Part> parts;
    std::vector<CUdeviceptr> freed;
};

GraphCharge::GraphCharge(const void* graph, CUstream stream, bool per_thread) {
    GraphNeeds needs = needs_of(graph);
    const CUstream meant_stream = meant(stream, per_thread);
    if (needs.devices.empty() && needs.freed.empty()) return;
    // Captured, it becomes part of a graph, and takes nothing now.
    if (launch_state.captures.load(std::memory_order_relaxed) != 0 && is_capturing(meant_stream)) return;
    const Stream* lane = stream_for(stream, per_thread);
    const CUcontext context = lane ? lane->context.load() : current_context();
    begun_.reset(new Begun{.launch = {graph, lane, meant_stream, context}, .parts = {}, .freed = needs.freed});
    for (GraphNeed& need : needs.devices) {
        GraphMemory* memory = on(need.device);
        if (!memory) continue;
        const std::optional<uint64_t> growth = begin_launch(*memory, need, begun_->launch);
        if (!growth) {
            fits_ = false;
            return;
        }
        begun_->parts.push_back({memory, std::move(need), *growth});
    }
}

GraphCharge::~GraphCharge() {
    if (!begun_) return;
    const GraphLaunch& launch = begun_->launch;
    const RelaxedCapture relaxed;
    for (auto& [memory, need, growth] : begun_->parts) {
        const Allocation left{0, launch.context, nullptr, need.device, Allocation::Kind::kOfGraph};
        if (launched_) {
            for (const CUdeviceptr pointer : need.left) gemlet::hook::remember(pointer, left);  // one before is freed
            StreamEnd end;
            record_end(end, launch.context, launch.stream);
            std::lock_guard lock(memory->mutex);
            memory->flights.end(launch, need.left, end);
        } else {
            std::lock_guard lock(memory->mutex);
            memory->flights.cancel(launch);
        }
        if (growth == 0) continue;
        graph_memory_changed(need.device);  // first, so that nobody takes the room in between
        give_back(need.device, growth);
    }
    if (!launched_) return;
    for (const CUdeviceptr pointer : begun_->freed)
        if (const auto known = allocations().take(pointer)) settle_freed_later(pointer, *known, launch.stream);
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

namespace {

template <class Call>
CUresult upload(CUgraphExec graph, CUstream stream, bool per_thread, Call&& call) {
    const CUdevice device = device_of_stream(stream);
    if (!room_for_unknown(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    GraphCharge memory(graph, stream, per_thread);
    if (!memory.fits()) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = submit(stream, per_thread, copy_work(0, true), call);
    if (result == CUDA_SUCCESS) memory.launched();
    graph_memory_changed(device);
    return result;
}

template <class Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Call&& call, const CUDA_GRAPH_INSTANTIATE_PARAMS* params = {},
                     bool per_thread = false) {
    CUresult result;
    if (params && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
        remember(graph, graph);
        GraphCharge memory(graph, params->hUploadStream, per_thread);
        if (!memory.fits()) return CUDA_ERROR_OUT_OF_MEMORY;
        result = call();
        if (result == CUDA_SUCCESS) memory.launched();
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
    if (result == CUDA_SUCCESS) refresh_graph_memory(device);
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
        exec, graph, [&] { return real::cuGraphInstantiateWithParams_ptsz(exec, graph, params); }, params, true);
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
    return upload(graph, stream, false, [&] { return real::cuGraphUpload(graph, stream); });
}

CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) {
    return upload(graph, stream, true, [&] { return real::cuGraphUpload_ptsz(graph, stream); });
}

}  // extern "C"
