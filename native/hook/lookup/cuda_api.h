// cuda.h with every versioned symbol declared (_v2, _ptsz, ...) and nothing renamed by macros. Our hooks are the
// global extern "C" functions themselves, so cuda.h is their prototype: a wrong signature does not compile.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
