// cuda.h with every versioned symbol declared (_v2, _ptsz, ...) and nothing renamed by macros. Our hooks are the
// global extern "C" functions themselves, so cuda.h is their prototype: a wrong signature does not compile.
#pragma once

#include <cstdint>

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>

// Of cudaGL.h and cudaVDPAU.h, which need headers of OpenGL and VDPAU.
using VdpDevice = uint32_t;
using VdpGetProcAddress = uint32_t(VdpDevice, uint32_t, void**);
extern "C" {
CUresult cuGLCtxCreate(CUcontext* context, unsigned int flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext* context, unsigned int flags, CUdevice device, VdpDevice vdp,
                          VdpGetProcAddress* get);
CUresult cuVDPAUCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device, VdpDevice vdp,
                             VdpGetProcAddress* get);
}
#pragma GCC visibility pop
