// What can be asked of a function: attributes, parameters, occupancy.
#include <algorithm>

#include "handles.hpp"
#include "step.hpp"

using namespace gemlet::sim;

namespace {

int attribute(const Launchable& function, CUfunction_attribute which, const Profile& profile) {
    check(which >= 0 && which < CU_FUNC_ATTRIBUTE_MAX);
    switch (which) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            return profile.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            return 32;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            return 10 * profile.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] +
                   profile.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (function.attributes[which] == 0)
                return profile.attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if (function.attributes[which] == 0) return -1;
            break;
        default:
            break;
    }
    return function.attributes[which];
}

void set_attribute(Launchable& function, CUfunction_attribute which, int value, const Profile& profile) {
    check(which >= 0 && which < CU_FUNC_ATTRIBUTE_MAX);
    const bool settable = which >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    check(settable);
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        check(value >= 0 && value <= profile.attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]);
    function.attributes[which] = value;
}

void parameter(const Launchable& function, size_t index, size_t* offset, size_t* bytes) {
    check(offset != nullptr);
    check(index < function.entry->parameters.size());
    *offset = function.entry->parameters[index].offset;
    if (bytes != nullptr) *bytes = function.entry->parameters[index].bytes;
}

Launchable& checked(CUkernel kernel) {
    return *checked_handle(kernel, Tag::kKernel);
}

CUresult occupancy(const char* name, int* blocks, CUfunction function, int block, size_t shared) {
    return api(name, [&] {
        check(blocks != nullptr);
        launchable(function);
        *blocks = blocks_per_multiprocessor(require_context()->device->profile(), block, shared);
    });
}

CUresult best_block(const char* name, int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of,
                    size_t shared, int limit) {
    return api(name, [&] {
        check(grid != nullptr && block != nullptr);
        launchable(function);
        const Profile& profile = require_context()->device->profile();
        const int most = profile.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
        int best = 0;
        for (int size = limit > 0 ? std::min(limit, most) : most; size >= 32; size -= 32) {
            const int blocks =
                blocks_per_multiprocessor(profile, size, shared_of != nullptr ? shared_of(size) : shared);
            if (blocks * size <= best) continue;
            best = blocks * size;
            *block = size;
            *grid = blocks * require_context()->multiprocessors;
        }
        check(best > 0);
    });
}

}  // namespace

extern "C" {

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
    return api(__func__, [&] {
        check(value != nullptr);
        *value = attribute(launchable(function), which, require_context()->device->profile());
    });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    return api(__func__,
               [&] { set_attribute(launchable(function), which, value, require_context()->device->profile()); });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
    return api(__func__, [&] {
        check(value != nullptr);
        *value = attribute(checked(kernel), which, device_of(device).profile());
    });
}

CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
    return api(__func__, [&] { set_attribute(checked(kernel), which, value, device_of(device).profile()); });
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
    return api(__func__, [&] { parameter(launchable(function), index, offset, bytes); });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
    return api(__func__, [&] { parameter(checked(kernel), index, offset, bytes); });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
    return api(__func__, [&] {
        check(name != nullptr);
        *name = launchable(function).entry->name.c_str();
    });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    return api(__func__, [&] {
        check(module != nullptr && launchable(function).tag == Tag::kFunction);
        *module = function->module;
    });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
    return api(__func__, [&] {
        check(state != nullptr);
        launchable(function);
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    });
}

CUresult cuFuncLoad(CUfunction function) {
    return api(__func__, [&] { launchable(function); });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
    return api(__func__, [&] { launchable(function); });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
    return api(__func__, [&] {
        checked(kernel);
        device_of(device);
    });
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig) {
    return api(__func__, [&] { launchable(function); });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block, size_t shared) {
    return occupancy(__func__, blocks, function, block, shared);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int block,
                                                              size_t shared, unsigned) {
    return occupancy(__func__, blocks, function, block, shared);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit) {
    return best_block(__func__, grid, block, function, shared_of, shared, limit);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned) {
    return best_block(__func__, grid, block, function, shared_of, shared, limit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int blocks, int) {
    return api(__func__, [&] {
        check(bytes != nullptr && blocks > 0);
        launchable(function);
        const int32_t* a = require_context()->device->profile().attributes;
        const int share = a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] / blocks -
                          a[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK];
        *bytes = static_cast<size_t>(std::clamp(share, 0, a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]));
    });
}

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function, const CUlaunchConfig*) {
    return api(__func__, [&] {
        check(size != nullptr);
        launchable(function);
        *size = 8;
    });
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
    return api(__func__, [&] {
        check(clusters != nullptr && config != nullptr);
        launchable(function);
        *clusters = require_context()->device->profile().attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] / 8;
    });
}

}  // extern "C"
