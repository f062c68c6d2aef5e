// Primary contexts, and what goes away with a context.
#pragma once

#include "handles.hpp"

namespace gemlet::sim {

struct Primary {
    CUcontext context = nullptr;
    unsigned references = 0;
    unsigned flags = 0;
};

CUcontext primary_retain(CUdevice device);
void primary_release(CUdevice device, bool all);
Primary primary_state(CUdevice device);
void primary_set_flags(CUdevice device, unsigned flags);

// A green context of a device's primary one, which has to be there as long.
CUcontext create_green(CUdevice device, CUgreenCtx handle, int multiprocessors);
void destroy_green(CUcontext context);

void release_memory_of(CUcontext context);  // allocations.cpp

}  // namespace gemlet::sim
