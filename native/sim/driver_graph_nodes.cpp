// Graph nodes: adding them, and getting and setting their parameters, in graphs and in instantiated ones.
#include <cstring>

#include "capture.hpp"

using namespace gemlet::sim;

namespace {

CUDA_KERNEL_NODE_PARAMS_v3 widen(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
    CUDA_KERNEL_NODE_PARAMS_v3 w{};
    w.func = p.func;
    w.gridDimX = p.gridDimX, w.gridDimY = p.gridDimY, w.gridDimZ = p.gridDimZ;
    w.blockDimX = p.blockDimX, w.blockDimY = p.blockDimY, w.blockDimZ = p.blockDimZ;
    w.sharedMemBytes = p.sharedMemBytes;
    w.kernelParams = p.kernelParams;
    w.extra = p.extra;
    return w;
}

CUDA_KERNEL_NODE_PARAMS_v3 widen(const CUDA_KERNEL_NODE_PARAMS_v2& p) {
    CUDA_KERNEL_NODE_PARAMS_v3 w{};
    w.func = p.func;
    w.gridDimX = p.gridDimX, w.gridDimY = p.gridDimY, w.gridDimZ = p.gridDimZ;
    w.blockDimX = p.blockDimX, w.blockDimY = p.blockDimY, w.blockDimZ = p.blockDimZ;
    w.sharedMemBytes = p.sharedMemBytes;
    w.kernelParams = p.kernelParams;
    w.extra = p.extra;
    w.kern = p.kern;
    w.ctx = p.ctx;
    return w;
}

CUDA_MEMSET_NODE_PARAMS narrow(const CUDA_MEMSET_NODE_PARAMS_v2& p) {
    return {.dst = p.dst,
            .pitch = p.pitch,
            .value = p.value,
            .elementSize = p.elementSize,
            .width = p.width,
            .height = p.height};
}

SetStep set_node(const CUDA_MEMSET_NODE_PARAMS& p) {
    check(p.elementSize == 1 || p.elementSize == 2 || p.elementSize == 4);
    return set_step(p.dst, p.pitch, p.value, p.elementSize, p.width, p.height);
}

CUcontext context_or_current(CUcontext context) {
    return context != nullptr ? checked(context) : require_context();
}

ChildStep child_node(CUgraph graph) {
    ChildStep child{clone_graph(checked(graph))};
    child.graph->owned = true;
    return child;
}

// `p` also tells what became of it: the addresses of an allocation.
Step any_node(CUgraphNodeParams& p, const CUgraphNode* after = nullptr, size_t count = 0) {
    switch (p.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            return kernel_step(p.kernel);
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            return copy_step(p.memcpy.copyParams, context_or_current(p.memcpy.copyCtx));
        case CU_GRAPH_NODE_TYPE_MEMSET:
            return set_node(narrow(p.memset));
        case CU_GRAPH_NODE_TYPE_HOST:
            return HostStep{{.fn = p.host.fn, .userData = p.host.userData}};
        case CU_GRAPH_NODE_TYPE_GRAPH:
            return child_node(p.graph.graph);
        case CU_GRAPH_NODE_TYPE_EMPTY:
            return EmptyStep{};
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            return AwaitStep{checked_handle(p.eventWait.event, Tag::kEvent)};
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            return RecordStep{checked_handle(p.eventRecord.event, Tag::kEvent)};
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
            CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
            wanted.poolProps = p.alloc.poolProps;
            wanted.bytesize = p.alloc.bytesize;
            AllocStep step = alloc_step(wanted, after, count);
            p.alloc.dptr = step.params.dptr;
            return step;
        }
        default:
            fail(CUDA_ERROR_NOT_SUPPORTED);
    }
}

template <class MakeStep>
CUresult add(const char* name, CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
             MakeStep make) {
    return api(name, [&] {
        check(node != nullptr);
        *node = add_node(checked(graph), after, count, make());
    });
}

template <class Kind>
Kind& step_of(CUgraphNode node) {
    auto* step = std::get_if<Kind>(&checked(node)->step);
    check(step != nullptr);
    return *step;
}

CUgraphNode inside(CUgraphExec exec, CUgraphNode node) {
    const auto found = checked(exec)->node_of.find(node);
    check(found != exec->node_of.end());
    return found->second;
}

void replace(CUgraphNode node, Step step) {
    check(node_type(checked(node)->step) == node_type(step));
    std::swap(node->step, step);
    if (auto* child = std::get_if<ChildStep>(&step)) drop_graph(child->graph);
}

template <class MakeStep>
CUresult set(const char* name, CUgraphNode node, MakeStep make) {
    return api(name, [&] { replace(node, make()); });
}

template <class MakeStep>
CUresult set(const char* name, CUgraphExec exec, CUgraphNode node, MakeStep make) {
    return api(name, [&] { replace(inside(exec, node), make()); });
}

template <class Params>
CUresult kernel_params(const char* name, CUgraphNode node, Params* out) {
    return api(name, [&] {
        check(out != nullptr);
        KernelStep& step = step_of<KernelStep>(node);
        step.pointers.clear();
        for (auto& argument : step.storage) step.pointers.push_back(argument.data());
        *out = Params{};
        out->func = step.params.func;
        out->gridDimX = step.params.gridDimX, out->gridDimY = step.params.gridDimY,
        out->gridDimZ = step.params.gridDimZ;
        out->blockDimX = step.params.blockDimX, out->blockDimY = step.params.blockDimY,
        out->blockDimZ = step.params.blockDimZ;
        out->sharedMemBytes = step.params.sharedMemBytes;
        out->kernelParams = step.pointers.empty() ? nullptr : step.pointers.data();
        if constexpr (requires { out->kern; }) {
            out->kern = step.params.kern;
            out->ctx = step.params.ctx;
            CUfunction func = step.params.func;  // the driver says where it is, also of one that was captured
            if (!out->ctx && func && func->tag != Tag::kKernel) out->ctx = func->module->context;
        }
    });
}

}  // namespace

extern "C" {

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                              const CUDA_KERNEL_NODE_PARAMS_v1* p) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr);
        return kernel_step(widen(*p));
    });
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                                 const CUDA_KERNEL_NODE_PARAMS* p) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr);
        return kernel_step(widen(*p));
    });
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                              const CUDA_MEMCPY3D* p, CUcontext context) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr);
        return copy_step(*p, context_or_current(context));
    });
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                              const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr);
        return set_node(*p);
    });
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                            const CUDA_HOST_NODE_PARAMS* p) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr && p->fn != nullptr);
        return HostStep{*p};
    });
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                                  CUgraph child) {
    return add(__func__, node, graph, after, n, [&]() -> Step { return child_node(child); });
}
CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n) {
    return add(__func__, node, graph, after, n, []() -> Step { return EmptyStep{}; });
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                                   CUevent event) {
    return add(__func__, node, graph, after, n,
               [&]() -> Step { return RecordStep{checked_handle(event, Tag::kEvent)}; });
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n,
                                 CUevent event) {
    return add(__func__, node, graph, after, n,
               [&]() -> Step { return AwaitStep{checked_handle(event, Tag::kEvent)}; });
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t n, CUgraphNodeParams* p) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr);
        return any_node(*p, after, n);
    });
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData*,
                           size_t n, CUgraphNodeParams* p) {
    return add(__func__, node, graph, after, n, [&]() -> Step {
        check(p != nullptr);
        return any_node(*p, after, n);
    });
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* p) {
    return kernel_params(__func__, node, p);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* p) {
    return kernel_params(__func__, node, p);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* p) {
    return api(__func__, [&] {
        check(p != nullptr);
        *p = step_of<CopyStep>(node).copy;
    });
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* p) {
    return api(__func__, [&] {
        check(p != nullptr);
        *p = step_of<SetStep>(node).params;
    });
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* p) {
    return api(__func__, [&] {
        check(p != nullptr);
        *p = step_of<HostStep>(node).params;
    });
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
    return api(__func__, [&] {
        check(graph != nullptr);
        *graph = step_of<ChildStep>(node).graph;
    });
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
    return api(__func__, [&] {
        check(event != nullptr);
        *event = step_of<RecordStep>(node).event;
    });
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
    return api(__func__, [&] {
        check(event != nullptr);
        *event = step_of<AwaitStep>(node).event;
    });
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
    return set(__func__, node, [&]() -> Step {
        check(p != nullptr);
        return kernel_step(widen(*p));
    });
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
    return set(__func__, node, [&]() -> Step {
        check(p != nullptr);
        return kernel_step(widen(*p));
    });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* p) {
    return set(__func__, node, [&]() -> Step {
        check(p != nullptr);
        return copy_step(*p, require_context());
    });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* p) {
    return set(__func__, node, [&]() -> Step {
        check(p != nullptr);
        return set_node(*p);
    });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
    return set(__func__, node, [&]() -> Step {
        check(p != nullptr && p->fn != nullptr);
        return HostStep{*p};
    });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
    return set(__func__, node, [&]() -> Step { return RecordStep{checked_handle(event, Tag::kEvent)}; });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
    return set(__func__, node, [&]() -> Step { return AwaitStep{checked_handle(event, Tag::kEvent)}; });
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* p) {
    return set(__func__, node, [&]() -> Step {
        check(p != nullptr);
        return any_node(*p);
    });
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
    return set(__func__, exec, node, [&]() -> Step {
        check(p != nullptr);
        return kernel_step(widen(*p));
    });
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
    return set(__func__, exec, node, [&]() -> Step {
        check(p != nullptr);
        return kernel_step(widen(*p));
    });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* p,
                                        CUcontext context) {
    return set(__func__, exec, node, [&]() -> Step {
        check(p != nullptr);
        return copy_step(*p, context_or_current(context));
    });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* p,
                                        CUcontext) {
    return set(__func__, exec, node, [&]() -> Step {
        check(p != nullptr);
        return set_node(*p);
    });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
    return set(__func__, exec, node, [&]() -> Step {
        check(p != nullptr && p->fn != nullptr);
        return HostStep{*p};
    });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    return set(__func__, exec, node, [&]() -> Step { return child_node(child); });
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
    return set(__func__, exec, node, [&]() -> Step { return RecordStep{checked_handle(event, Tag::kEvent)}; });
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
    return set(__func__, exec, node, [&]() -> Step { return AwaitStep{checked_handle(event, Tag::kEvent)}; });
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* p) {
    return set(__func__, exec, node, [&]() -> Step {
        check(p != nullptr);
        return any_node(*p);
    });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
    return api(__func__, [&] { inside(exec, node)->enabled = enabled != 0; });
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned* enabled) {
    return api(__func__, [&] {
        check(enabled != nullptr);
        *enabled = inside(exec, node)->enabled ? 1 : 0;
    });
}

}  // extern "C"
