// The few functions of the driver that a batch needs, found at run time: the library must load where there is no
// driver.
#pragma once

#include <cuda.h>

namespace gemlet::batch {

// X(member, exported name, declaration of that version)
#define GEMBATCH_DRIVER(X)                                          \
    X(init, "cuInit", cuInit)                                       \
    X(device_get, "cuDeviceGet", cuDeviceGet)                       \
    X(retain, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain) \
    X(current, "cuCtxGetCurrent", cuCtxGetCurrent)                  \
    X(push, "cuCtxPushCurrent_v2", cuCtxPushCurrent)                \
    X(pop, "cuCtxPopCurrent_v2", cuCtxPopCurrent)                   \
    X(to_device, "cuMemcpyHtoDAsync_v2", cuMemcpyHtoDAsync)         \
    X(to_host, "cuMemcpyDtoHAsync_v2", cuMemcpyDtoHAsync)           \
    X(launch, "cuGraphLaunch", cuGraphLaunch)                       \
    X(write, "cuStreamWriteValue32_v2", cuStreamWriteValue32)       \
    X(query, "cuStreamQuery", cuStreamQuery)                        \
    X(wait, "cuStreamSynchronize", cuStreamSynchronize)             \
    X(words, "cuGetErrorString", cuGetErrorString)

struct Driver {
#define GEMBATCH_MEMBER(member, name, declaration) decltype(&declaration) member = nullptr;
    GEMBATCH_DRIVER(GEMBATCH_MEMBER)
#undef GEMBATCH_MEMBER
    // The first name that was not found, "libcuda.so.1" if there is no driver at all; null if all is there.
    const char* missing = nullptr;
};

// The same one each time. It is looked for at the first call and never unloaded.
const Driver& driver() noexcept;

}  // namespace gemlet::batch
