// Graphs as a whole: making, instantiating, launching, walking.
#include <algorithm>
#include <cstring>

#include "capture.hpp"

using namespace gemlet::sim;

namespace {

CUgraphExec instantiate(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec = HandlePool<CUgraphExec_st>::make();
    exec->node_of.clear();
    exec->graph = clone_graph(checked(graph), &exec->node_of);
    exec->flags = flags;
    return created(exec, Tag::kGraphExec);
}

CUresult instantiate(const char* name, CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    return api(name, [&] {
        check(exec != nullptr);
        *exec = instantiate(graph, flags);
    });
}

// Fills `out` up to *count; *count becomes what there is (or, with `out` given, what was written).
void give_list(const std::vector<CUgraphNode>& nodes, CUgraphNode* out, size_t* count) {
    check(count != nullptr);
    if (out != nullptr) {
        for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i] : nullptr;
        *count = std::min(*count, nodes.size());
    } else {
        *count = nodes.size();
    }
}

void give_edges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
    check(count != nullptr && (from == nullptr) == (to == nullptr));
    size_t found = 0;
    for (CUgraphNode node : checked(graph)->nodes)
        for (CUgraphNode before : node->after) {
            if (from != nullptr && found < *count) {
                from[found] = before;
                to[found] = node;
                if (data != nullptr) data[found] = CUgraphEdgeData{};
            }
            ++found;
        }
    *count = from != nullptr ? std::min(*count, found) : found;
}

std::vector<CUgraphNode> dependents(CUgraphNode node) {
    std::vector<CUgraphNode> found;
    for (CUgraphNode other : checked(node)->graph->nodes)
        if (std::find(other->after.begin(), other->after.end(), node) != other->after.end()) found.push_back(other);
    return found;
}

void add_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    check(count == 0 || (from != nullptr && to != nullptr));
    for (size_t i = 0; i < count; ++i) {
        check(checked(from[i])->graph == checked(graph) && checked(to[i])->graph == graph && from[i] != to[i]);
        auto& after = to[i]->after;
        check(std::find(after.begin(), after.end(), from[i]) == after.end());
        after.push_back(from[i]);
    }
}

void remove_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    check(count == 0 || (from != nullptr && to != nullptr));
    for (size_t i = 0; i < count; ++i) {
        checked(from[i]);
        check(checked(to[i])->graph == checked(graph));
        check(std::erase(to[i]->after, from[i]) > 0);
    }
}

// Takes the parameters of a graph that must have the same shape as the one `exec` was made of.
CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph, CUgraphNode* culprit) {
    const std::vector<CUgraphNode> ours = checked(exec)->graph->nodes;
    const std::vector<CUgraphNode> theirs = in_order(checked(graph));
    if (ours.size() != theirs.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    std::map<CUgraphNode, CUgraphNode> twin;
    for (size_t i = 0; i < ours.size(); ++i) twin[theirs[i]] = ours[i];
    for (size_t i = 0; i < ours.size(); ++i) {
        if (culprit != nullptr) *culprit = theirs[i];
        if (node_type(ours[i]->step) != node_type(theirs[i]->step))
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        std::vector<CUgraphNode> after;
        for (CUgraphNode before : theirs[i]->after) after.push_back(twin.at(before));
        if (after != ours[i]->after) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (culprit != nullptr) *culprit = nullptr;
    CUgraph fresh = clone_graph(graph);
    const std::vector<CUgraphNode> sorted = fresh->nodes;
    for (size_t i = 0; i < ours.size(); ++i) std::swap(ours[i]->step, sorted[i]->step);
    drop_graph(fresh);
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
    return api(__func__, [&] {
        check(graph != nullptr && flags == 0);
        *graph = new_graph();
    });
}

CUresult cuGraphDestroy(CUgraph graph) {
    return api(__func__, [&] {
        check(!checked(graph)->owned);
        drop_graph(graph);
    });
}

CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
    return api(__func__, [&] {
        check(clone != nullptr);
        *clone = clone_graph(checked(graph));
    });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original, CUgraph clone) {
    return api(__func__, [&] {
        check(node != nullptr);
        for (CUgraphNode candidate : checked(clone)->nodes)
            if (candidate->original == original) {
                *node = candidate;
                return;
            }
        fail(CUDA_ERROR_INVALID_VALUE);
    });
}

CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
    return instantiate(__func__, exec, graph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
    return instantiate(__func__, exec, graph, 0);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    return instantiate(__func__, exec, graph, flags);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    return api(__func__, [&] {
        check(exec != nullptr && params != nullptr);
        params->hErrNode_out = nullptr;
        params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
        *exec = instantiate(graph, params->flags);
        params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    });
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return api(__func__, [&] { launch_graph(checked(exec), stream); });
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return api(__func__, [&] {
        CUstream s = resolve_stream(stream);
        GraphUse memory(s->queue.get());
        back_graph(checked(exec)->graph, owner_of(s->context), memory);
        memory.begun(Dispatcher::get().tail(s->queue));
    });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    return api(__func__, [&] {
        drop_graph(checked(exec)->graph);  // launches in flight hold what they need
        exec->node_of.clear();
        HandlePool<CUgraphExec_st>::drop(exec);
    });
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
    return api(__func__, [&] {
        check(flags != nullptr);
        *flags = checked(exec)->flags;
    });
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* culprit, CUgraphExecUpdateResult* result) {
    return api(__func__, [&]() -> CUresult {
        check(result != nullptr);
        *result = update(exec, graph, culprit);
        return *result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
    return api(__func__, [&]() -> CUresult {
        check(info != nullptr);
        *info = CUgraphExecUpdateResultInfo{};
        info->result = update(exec, graph, &info->errorNode);
        return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    return api(__func__, [&] { give_list(checked(graph)->nodes, nodes, count); });
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    return api(__func__, [&] {
        std::vector<CUgraphNode> roots;
        for (CUgraphNode node : checked(graph)->nodes)
            if (node->after.empty()) roots.push_back(node);
        give_list(roots, nodes, count);
    });
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
    return api(__func__, [&] { give_edges(graph, from, to, nullptr, count); });
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
    return api(__func__, [&] { give_edges(graph, from, to, data, count); });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
    return api(__func__, [&] { give_list(checked(node)->after, nodes, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
    return api(__func__, [&] {
        give_list(checked(node)->after, nodes, count);
        for (size_t i = 0; data != nullptr && i < *count; ++i) data[i] = CUgraphEdgeData{};
    });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
    return api(__func__, [&] { give_list(dependents(node), nodes, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
    return api(__func__, [&] {
        give_list(dependents(node), nodes, count);
        for (size_t i = 0; data != nullptr && i < *count; ++i) data[i] = CUgraphEdgeData{};
    });
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    return api(__func__, [&] { add_edges(graph, from, to, count); });
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
    return api(__func__, [&] { add_edges(graph, from, to, count); });
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    return api(__func__, [&] { remove_edges(graph, from, to, count); });
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
    return api(__func__, [&] { remove_edges(graph, from, to, count); });
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    return api(__func__, [&] {
        CUgraph graph = checked(node)->graph;
        for (CUgraphNode other : graph->nodes) std::erase(other->after, node);
        std::erase(graph->nodes, node);
        if (auto* child = std::get_if<ChildStep>(&node->step)) drop_graph(child->graph);
        node->step = EmptyStep{};
        HandlePool<CUgraphNode_st>::drop(node);
    });
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    return api(__func__, [&] {
        check(type != nullptr);
        *type = node_type(checked(node)->step);
    });
}

}  // extern "C"
