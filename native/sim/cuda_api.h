// cuda.h with every versioned symbol declared (_v2, _ptsz, ...) and nothing renamed: the functions we define are
// checked against NVIDIA's prototypes, and being declared here is what exports them.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
