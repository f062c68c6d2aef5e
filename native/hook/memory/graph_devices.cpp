// A graph that was captured on streams of several devices goes to the driver by one launch, on a stream of one of
// them. On the others it needs the token and its memory all the same. Where the nodes work is known when it is
// instantiated; updates of an instantiated graph cannot change it.
#include "hook/memory/graph_devices.h"

#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <vector>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/memory/graph_nodes.h"
#include "hook/memory/movable.h"
#include "hook/submit/current_context.h"
#include "hook/submit/device.h"
#include "hook/submit/launch.h"

namespace gemlet::hook {

std::atomic<bool> graphs_span{false};

namespace {

struct Spanning {
    std::mutex mutex;
    std::unordered_map<const void*, std::vector<CUdevice>>
        devices;  // by handle; not of those on the current one alone
};

Spanning& spanning() {
    static auto* all = new Spanning;
    return *all;
}

bool uses_several_devices() {
    int used = 0;
    for (CUdevice device = 0; device < kMaxDevices; ++device)
        if (device_in_use(device)) ++used;
    return used > 1;
}

using Devices = std::set<CUdevice>;

void add_context(CUcontext context, Devices& devices) {
    CUdevice device = -1;
    const ContextScope scope(context);
    if (context && scope.ok() && own().cuCtxGetDevice(&device) == CUDA_SUCCESS) devices.insert(device);
}

void add_address(CUdeviceptr address, Devices& devices) {
    int device = -1;
    unsigned type = 0;
    if (const auto range = swap_active() ? swap_find(address) : std::nullopt)
        devices.insert(range->device);
    else if (real::cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
             type == CU_MEMORYTYPE_DEVICE &&
             real::cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS)
        devices.insert(device);
}

void add_side(CUmemorytype type, CUdeviceptr address, const void* host, Devices& devices) {
    if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED) add_address(address, devices);
    if (type == CU_MEMORYTYPE_HOST) add_address(reinterpret_cast<CUdeviceptr>(host), devices);
}

void add_node(CUgraphNode node, CUgraphNodeType type, Devices& devices) {
    const OwnCalls& o = own();
    CUDA_KERNEL_NODE_PARAMS kernel{};
    CUDA_MEMCPY3D copy{};
    CUDA_MEMSET_NODE_PARAMS set{};
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && o.cuGraphKernelNodeGetParams_v2(node, &kernel) == CUDA_SUCCESS)
        add_context(kernel.ctx, devices);
    if (type == CU_GRAPH_NODE_TYPE_MEMSET && o.cuGraphMemsetNodeGetParams(node, &set) == CUDA_SUCCESS)
        add_address(set.dst, devices);
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY && o.cuGraphMemcpyNodeGetParams(node, &copy) == CUDA_SUCCESS) {
        add_side(copy.srcMemoryType, copy.srcDevice, copy.srcHost, devices);
        add_side(copy.dstMemoryType, copy.dstDevice, copy.dstHost, devices);
    }
}

}  // namespace

void remember_devices(const void* handle, CUgraph graph) {
    const OwnCalls& o = own();
    if (!can_list_nodes() || !o.cuGraphKernelNodeGetParams_v2 || !o.cuGraphMemcpyNodeGetParams ||
        !o.cuGraphMemsetNodeGetParams)
        return;
    Devices found;
    if (uses_several_devices())
        each_node(graph, [&](CUgraphNode node, CUgraphNodeType type) { add_node(node, type, found); });
    // It goes to a stream of the current device, as far as that is known.
    if (found.size() == 1 && found.contains(current_device())) found.clear();
    if (found.empty() && !graphs_span.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(spanning().mutex);
    if (found.empty()) {
        spanning().devices.erase(handle);  // one that is gone had the same handle
    } else {
        spanning().devices[handle] = {found.begin(), found.end()};
        graphs_span.store(true, std::memory_order_relaxed);
    }
}

std::vector<CUdevice> devices_of_graph(const void* graph) {
    const std::lock_guard lock(spanning().mutex);
    const auto found = spanning().devices.find(graph);
    return found == spanning().devices.end() ? std::vector<CUdevice>{} : found->second;
}

void forget_devices() {
    new (&spanning()) Spanning;
}

}  // namespace gemlet::hook
