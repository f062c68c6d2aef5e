// Graphs: nodes with dependencies, and what is left of them when they are instantiated.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "step.hpp"

struct CUgraphNode_st {
    gemlet::sim::Tag tag;
    CUgraph graph;
    gemlet::sim::Step step;
    std::vector<CUgraphNode> after;
    CUgraphNode original = nullptr;  // the node this one was cloned from
    bool enabled = true;
};

struct CUgraph_st {
    gemlet::sim::Tag tag;
    std::vector<CUgraphNode> nodes;
    bool owned = false;  // by a child graph node
};

struct CUgraphExec_st {
    gemlet::sim::Tag tag;
    CUgraph graph;                               // a private clone, in an order that keeps all dependencies
    std::map<CUgraphNode, CUgraphNode> node_of;  // the program's node -> ours
    unsigned long long flags;
};

namespace gemlet::sim {

CUgraph new_graph();
CUgraph clone_graph(CUgraph graph, std::map<CUgraphNode, CUgraphNode>* map = nullptr);
void drop_graph(CUgraph graph);
CUgraphNode add_node(CUgraph graph, const CUgraphNode* after, size_t count, Step step);
// Sorted so that every node comes after what it depends on; CUDA_ERROR_INVALID_VALUE on a cycle.
std::vector<CUgraphNode> in_order(CUgraph graph);
CUgraphNodeType node_type(const Step& step);
inline CUgraph checked(CUgraph graph) {
    return checked_handle(graph, Tag::kGraph);
}
inline CUgraphNode checked(CUgraphNode node) {
    return checked_handle(node, Tag::kGraphNode);
}
inline CUgraphExec checked(CUgraphExec exec) {
    return checked_handle(exec, Tag::kGraphExec);
}

// A node that allocates reuses the addresses of a node that frees right before it.
AllocStep alloc_step(const CUDA_MEM_ALLOC_NODE_PARAMS& params, const CUgraphNode* after, size_t count);
FreeStep free_step(CUgraph graph, CUdeviceptr address);  // of memory that a node of this graph allocates
// Gives all allocation nodes their memory; CUDA_ERROR_OUT_OF_MEMORY.
void back_graph(CUgraph graph, CUcontext context, GraphUse& use);

// All of the graph as one unit of a stream's queue. Kernels without effects that follow each other become one.
void launch_graph(CUgraphExec exec, CUstream stream);

}  // namespace gemlet::sim
