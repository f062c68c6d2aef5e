#include "graph.hpp"

#include <algorithm>
#include <set>

#include "capture.hpp"

namespace gemlet::sim {

CUgraph new_graph() {
    CUgraph graph = HandlePool<CUgraph_st>::make();
    graph->nodes.clear();
    graph->owned = false;
    return created(graph, Tag::kGraph);
}

CUgraphNode add_node(CUgraph graph, const CUgraphNode* after, size_t count, Step step) {
    check(count == 0 || after != nullptr);
    for (size_t i = 0; i < count; ++i) check(checked(after[i])->graph == graph);
    CUgraphNode node = HandlePool<CUgraphNode_st>::make();
    node->graph = graph;
    node->step = std::move(step);
    node->after.assign(after, after + count);
    node->original = nullptr;
    node->enabled = true;
    graph->nodes.push_back(created(node, Tag::kGraphNode));
    return node;
}

CUgraph clone_graph(CUgraph graph, std::map<CUgraphNode, CUgraphNode>* map) {
    std::map<CUgraphNode, CUgraphNode> own;
    auto& twin = map != nullptr ? *map : own;
    CUgraph copy = new_graph();
    for (CUgraphNode node : in_order(graph)) {
        std::vector<CUgraphNode> after;
        for (CUgraphNode before : node->after) after.push_back(twin.at(before));
        Step step = node->step;
        if (auto* child = std::get_if<ChildStep>(&step)) {
            child->graph = clone_graph(child->graph);
            child->graph->owned = true;
        }
        CUgraphNode made = add_node(copy, after.data(), after.size(), std::move(step));
        made->original = node;
        made->enabled = node->enabled;
        twin[node] = made;
    }
    return copy;
}

void drop_graph(CUgraph graph) {
    for (CUgraphNode node : graph->nodes) {
        if (auto* child = std::get_if<ChildStep>(&node->step)) drop_graph(child->graph);
        node->step = EmptyStep{};
        HandlePool<CUgraphNode_st>::drop(node);
    }
    graph->nodes.clear();
    HandlePool<CUgraph_st>::drop(graph);
}

std::vector<CUgraphNode> in_order(CUgraph graph) {
    std::map<CUgraphNode, size_t> missing;
    std::map<CUgraphNode, std::vector<CUgraphNode>> next;
    std::vector<CUgraphNode> sorted;
    for (CUgraphNode node : graph->nodes) {
        missing[node] = node->after.size();
        for (CUgraphNode before : node->after) next[before].push_back(node);
        if (node->after.empty()) sorted.push_back(node);
    }
    for (size_t i = 0; i < sorted.size(); ++i)
        for (CUgraphNode node : next[sorted[i]])
            if (--missing[node] == 0) sorted.push_back(node);
    check(sorted.size() == graph->nodes.size());
    return sorted;
}

CUgraphNodeType node_type(const Step& step) {
    struct {
        CUgraphNodeType operator()(const KernelStep&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
        CUgraphNodeType operator()(const CopyStep&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
        CUgraphNodeType operator()(const SetStep&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
        CUgraphNodeType operator()(const HostStep&) const { return CU_GRAPH_NODE_TYPE_HOST; }
        CUgraphNodeType operator()(const EmptyStep&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
        CUgraphNodeType operator()(const RecordStep&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
        CUgraphNodeType operator()(const AwaitStep&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
        CUgraphNodeType operator()(const ChildStep&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
        CUgraphNodeType operator()(const WordStep&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
        CUgraphNodeType operator()(const AllocStep&) const { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
        CUgraphNodeType operator()(const FreeStep&) const { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    } type;
    return std::visit(type, step);
}

AllocStep alloc_step(const CUDA_MEM_ALLOC_NODE_PARAMS& params, const CUgraphNode* after, size_t count) {
    check(params.poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
          params.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE && params.bytesize > 0);
    check(count == 0 || after != nullptr);
    AllocStep step{.params = params, .range = nullptr};
    for (size_t i = 0; i < count && step.range == nullptr; ++i) {
        const auto* freed = std::get_if<FreeStep>(&checked(after[i])->step);
        if (freed != nullptr && freed->range->bytes() >= params.bytesize) step.range = freed->range;
    }
    if (step.range == nullptr)
        step.range = std::make_shared<GraphRange>(device_of(params.poolProps.location.id), params.bytesize);
    step.params.dptr = step.range->base();
    return step;
}

FreeStep free_step(CUgraph graph, CUdeviceptr address) {
    for (CUgraphNode node : checked(graph)->nodes) {
        const auto* made = std::get_if<AllocStep>(&node->step);
        if (made != nullptr && made->range->base() == address) return {made->range};
    }
    fail(CUDA_ERROR_INVALID_VALUE);
}

void back_graph(CUgraph graph, CUcontext context, GraphUse& use) {
    const auto frees = [&](const GraphRange& range) {
        return std::any_of(graph->nodes.begin(), graph->nodes.end(), [&](CUgraphNode node) {
            const auto* freed = std::get_if<FreeStep>(&node->step);
            return freed != nullptr && freed->range.get() == &range;
        });
    };
    std::set<GraphRange*> backed;  // several nodes may have the same addresses
    for (CUgraphNode node : graph->nodes) {
        if (auto* made = std::get_if<AllocStep>(&node->step); made && backed.insert(made->range.get()).second)
            made->range->back(context, use, !frees(*made->range));
        if (auto* child = std::get_if<ChildStep>(&node->step)) back_graph(child->graph, context, use);
    }
}

void launch_graph(CUgraphExec exec, CUstream stream) {
    CUstream s = resolve_stream(stream);
    if (capturing(s)) return capture_child(s, exec->graph);
    forbid_implicit(s);
    GraphUse memory(s->queue.get());
    back_graph(exec->graph, owner_of(s->context), memory);
    std::vector<OpRef> ops;
    for (CUgraphNode node : exec->graph->nodes) {
        if (!node->enabled) continue;
        const auto* kernel = std::get_if<KernelStep>(&node->step);
        const bool joins = kernel != nullptr && !kernel_acts(*kernel) && !ops.empty() &&
                           ops.back()->kind == OpKind::kKernel && !ops.back()->acts();
        if (joins)
            ops.back()->cost += kernel_cost(*kernel);
        else
            append_operations(node->step, ops);
    }
    if (ops.empty()) append_operations(AwaitStep{nullptr}, ops);
    OpRef last = ops.back();
    enqueue(s, std::move(ops));
    memory.begun(std::move(last));
}

}  // namespace gemlet::sim
