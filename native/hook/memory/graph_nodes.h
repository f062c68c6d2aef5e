// The nodes of a graph, and of the graphs in it.
#pragma once

#include <vector>

#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

inline bool can_list_nodes() {
    const OwnCalls& o = own();
    return o.cuGraphGetNodes && o.cuGraphNodeGetType && o.cuGraphChildGraphNodeGetGraph;
}

// Calls `visit(node, type)` for each that does work itself.
template <class Visit>
void each_node(CUgraph graph, Visit&& visit) {
    const OwnCalls& o = own();
    size_t count = 0;
    if (o.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
    std::vector<CUgraphNode> nodes(count);
    if (o.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
    for (size_t i = 0; i < count; ++i) {
        CUgraphNodeType type;
        if (o.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) continue;
        CUgraph child = nullptr;
        if (type != CU_GRAPH_NODE_TYPE_GRAPH)
            visit(nodes[i], type);
        else if (o.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            each_node(child, visit);
    }
}

}  // namespace gemlet::hook
