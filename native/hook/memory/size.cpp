#include "hook/memory/size.h"

#include <algorithm>

namespace gemlet::hook {

namespace {

struct Format {
    uint64_t bytes;           // per element and channel, or per block
    uint64_t block = 1;       // width and height of a compressed block
    bool per_channel = true;  // false: `bytes` holds for all channels together
};

Format format_of(CUarray_format format) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
        case CU_AD_FORMAT_UNORM_INT8X1:
        case CU_AD_FORMAT_UNORM_INT8X2:
        case CU_AD_FORMAT_UNORM_INT8X4:
        case CU_AD_FORMAT_SNORM_INT8X1:
        case CU_AD_FORMAT_SNORM_INT8X2:
        case CU_AD_FORMAT_SNORM_INT8X4:
            return {1};
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
        case CU_AD_FORMAT_UNORM_INT16X1:
        case CU_AD_FORMAT_UNORM_INT16X2:
        case CU_AD_FORMAT_UNORM_INT16X4:
        case CU_AD_FORMAT_SNORM_INT16X1:
        case CU_AD_FORMAT_SNORM_INT16X2:
        case CU_AD_FORMAT_SNORM_INT16X4:
            return {2};
        case CU_AD_FORMAT_NV12:
            return {2, 1, false};  // 12 bits a pixel, planes aligned
        case CU_AD_FORMAT_BC1_UNORM:
        case CU_AD_FORMAT_BC1_UNORM_SRGB:
        case CU_AD_FORMAT_BC4_UNORM:
        case CU_AD_FORMAT_BC4_SNORM:
            return {8, 4, false};
        case CU_AD_FORMAT_BC2_UNORM:
        case CU_AD_FORMAT_BC2_UNORM_SRGB:
        case CU_AD_FORMAT_BC3_UNORM:
        case CU_AD_FORMAT_BC3_UNORM_SRGB:
        case CU_AD_FORMAT_BC5_UNORM:
        case CU_AD_FORMAT_BC5_SNORM:
        case CU_AD_FORMAT_BC6H_UF16:
        case CU_AD_FORMAT_BC6H_SF16:
        case CU_AD_FORMAT_BC7_UNORM:
        case CU_AD_FORMAT_BC7_UNORM_SRGB:
            return {16, 4, false};
        default:
            return {4};  // 32-bit formats, and no less than any other takes
    }
}

// Saturates instead of wrapping around.
uint64_t times(uint64_t a, uint64_t b) {
    return b != 0 && a > kAbsurd / b ? kAbsurd : a * b;
}

uint64_t blocks(uint64_t length, uint64_t block) {
    return std::max<uint64_t>(1, length / block + (length % block != 0));
}

}  // namespace

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned int levels) {
    const Format format = format_of(array.Format);
    const uint64_t element = times(format.bytes, format.per_channel ? std::max(1u, array.NumChannels) : 1);
    const bool layered = array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t total = 0;
    for (unsigned int level = 0; level < std::clamp(levels, 1u, 32u); ++level) {
        const uint64_t width = blocks(array.Width >> level, format.block);
        const uint64_t height = blocks(array.Height >> level, format.block);
        const uint64_t depth = std::max<uint64_t>(1, layered ? array.Depth : array.Depth >> level);
        total = std::min(kAbsurd, total + times(times(times(element, width), height), depth));
    }
    if (total >= kAbsurd) return kAbsurd;
    return round_up(total, shares_slab(total) ? kArrayUnit : kBlock);
}

}  // namespace gemlet::hook
