// What the driver really takes for a request. Only this file knows; bench/memory_truth.py measured the constants
// for cuMemAlloc, pitch and pools on an H200 (driver 580.159.04).
#pragma once

#include <cstddef>
#include <cstdint>

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

inline constexpr uint64_t kMiB = 1 << 20;

// Up to this size several allocations share physical blocks; above, each has its own.
inline constexpr uint64_t kSharesUpTo = 1 * kMiB;
// One physical block: the unit of own allocations and the size of a shared slab (aligned to its size).
inline constexpr uint64_t kBlock = 2 * kMiB;
// Alignment of what shares a slab.
inline constexpr uint64_t kSmallUnit = 512;
// What a memory pool asks for at a time.
inline constexpr uint64_t kPoolBlock = 32 * kMiB;
// Alignment of pitched rows and of small arrays.
inline constexpr uint64_t kPitchUnit = 512;
inline constexpr uint64_t kArrayUnit = 64 << 10;
// Larger than any device: the driver refuses by itself, and rounding could wrap around.
inline constexpr uint64_t kAbsurd = uint64_t{1} << 56;

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

constexpr bool shares_slab(uint64_t bytes) {
    return bytes <= kSharesUpTo;
}
constexpr uint64_t slab_of(CUdeviceptr pointer) {
    return pointer / kBlock * kBlock;
}

// Bytes of an array, mipmap levels included, as far as its description tells. kAbsurd if it would overflow.
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned int levels);

}  // namespace gemlet::hook
