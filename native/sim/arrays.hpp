// CUDA arrays: device memory with a shape, stored row by row.
#pragma once

#include "handles.hpp"

namespace gemlet::sim {

struct ArrayMemory {
    uintptr_t base;
    uint64_t pitch, height, bytes;
};

ArrayMemory array_memory(CUarray array);
uint64_t array_element_bytes(CUarray_format format, unsigned channels);

}  // namespace gemlet::sim
