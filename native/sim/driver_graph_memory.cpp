// Allocation and free nodes of graphs, and the pool that their memory comes from.
#include "capture.hpp"

using namespace gemlet::sim;

extern "C" {

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                                CUDA_MEM_ALLOC_NODE_PARAMS* p) {
    return api(__func__, [&] {
        check(node != nullptr && p != nullptr);
        AllocStep step = alloc_step(*p, after, n);
        *p = step.params;
        *node = add_node(checked(graph), after, n, std::move(step));
    });
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                               CUdeviceptr address) {
    return api(__func__, [&] {
        check(node != nullptr);
        *node = add_node(checked(graph), after, n, free_step(graph, address));
    });
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* p) {
    return api(__func__, [&] {
        const auto* step = std::get_if<AllocStep>(&checked(node)->step);
        check(p != nullptr && step != nullptr);
        *p = step->params;
    });
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
    return api(__func__, [&] {
        const auto* step = std::get_if<FreeStep>(&checked(node)->step);
        check(address != nullptr && step != nullptr);
        *address = step->range->base();
    });
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    return api(__func__, [&] { trim_graph_pool(device_of(device)); });
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void* value) {
    return api(__func__, [&] {
        check(value != nullptr);
        const GraphPool pool = graph_pool(device_of(device));
        auto* out = static_cast<cuuint64_t*>(value);
        switch (which) {
            // What a graph had stays its own until another has it or it is trimmed.
            case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
            case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
                *out = pool.reserved;
                break;
            case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
            case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
                *out = pool.reserved_high;
                break;
            default:
                fail(CUDA_ERROR_INVALID_VALUE);
        }
    });
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void* value) {
    return api(__func__, [&] {
        check(value != nullptr && *static_cast<cuuint64_t*>(value) == 0);
        check(which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
        reset_graph_pool_high(device_of(device));
    });
}

}  // extern "C"
