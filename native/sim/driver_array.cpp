// Arrays and mipmapped arrays.
#include <algorithm>

#include "addresses.hpp"
#include "allocations.hpp"
#include "arrays.hpp"
#include "capture.hpp"

struct CUarray_st {
    gemlet::sim::Tag tag;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    gemlet::sim::ArrayMemory memory;
    CUcontext context;
    bool owns;
};

struct CUmipmappedArray_st {
    gemlet::sim::Tag tag;
    std::vector<CUarray> levels;
};

namespace gemlet::sim {
namespace {

CUarray checked(CUarray array) {
    return checked_handle(array, Tag::kArray);
}

ArrayMemory layout(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    const uint64_t row = d.Width * array_element_bytes(d.Format, d.NumChannels);
    ArrayMemory m{};
    m.pitch = d.Height > 0 ? (row + 511) / 512 * 512 : row;
    m.height = std::max<uint64_t>(d.Height, 1);
    m.bytes = m.pitch * m.height * std::max<uint64_t>(d.Depth, 1);
    return m;
}

CUarray make_array(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR& d) {
    check(d.Width > 0);
    ArrayMemory memory = layout(d);
    memory.base = allocate_device(context, memory.bytes);
    CUarray array = HandlePool<CUarray_st>::make();
    array->descriptor = d;
    array->memory = memory;
    array->context = context;
    array->owns = true;
    return created(array, Tag::kArray);
}

void drop_array(CUarray array) {
    synchronize_context(array->context);
    free_device(array->memory.base);
    HandlePool<CUarray_st>::drop(array);
}

CUDA_ARRAY3D_DESCRIPTOR deepen(const CUDA_ARRAY_DESCRIPTOR& d) {
    CUDA_ARRAY3D_DESCRIPTOR full{};
    full.Width = d.Width, full.Height = d.Height, full.Format = d.Format, full.NumChannels = d.NumChannels;
    return full;
}

CUDA_ARRAY_MEMORY_REQUIREMENTS requirements(Device& device, uint64_t bytes) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS r{};
    const uint64_t unit = device.profile().granularity;
    r.size = (bytes + unit - 1) / unit * unit;
    r.alignment = unit;
    return r;
}

}  // namespace

uint64_t array_element_bytes(CUarray_format format, unsigned channels) {
    check(channels == 1 || channels == 2 || channels == 4);
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
            return channels;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
            return 2ull * channels;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT:
            return 4ull * channels;
        default:
            fail(CUDA_ERROR_NOT_SUPPORTED);
    }
}

ArrayMemory array_memory(CUarray array) {
    return checked(array)->memory;
}

}  // namespace gemlet::sim

using namespace gemlet::sim;

extern "C" {

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* d) {
    return api(__func__, [&] {
        check(array != nullptr && d != nullptr);
        CUcontext context = owner_of(require_context());
        forbid_during_capture();
        *array = make_array(context, deepen(*d));
    });
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* d) {
    return api(__func__, [&] {
        check(array != nullptr && d != nullptr);
        CUcontext context = owner_of(require_context());
        forbid_during_capture();
        *array = make_array(context, *d);
    });
}

CUresult cuArrayDestroy(CUarray array) {
    return api(__func__, [&] {
        check(checked(array)->owns);
        drop_array(array);
    });
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* d, CUarray array) {
    return api(__func__, [&] {
        check(d != nullptr);
        const CUDA_ARRAY3D_DESCRIPTOR& full = checked(array)->descriptor;
        *d = {.Width = full.Width, .Height = full.Height, .Format = full.Format, .NumChannels = full.NumChannels};
    });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* d, CUarray array) {
    return api(__func__, [&] {
        check(d != nullptr);
        *d = checked(array)->descriptor;
    });
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray array, CUdevice device) {
    return api(__func__, [&] {
        check(out != nullptr);
        *out = requirements(device_of(device), checked(array)->memory.bytes);
    });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned levels) {
    return api(__func__, [&] {
        check(out != nullptr && d != nullptr && levels > 0);
        CUcontext context = owner_of(require_context());
        forbid_during_capture();
        CUmipmappedArray made = HandlePool<CUmipmappedArray_st>::make();
        made->levels.clear();
        CUDA_ARRAY3D_DESCRIPTOR level = *d;
        try {
            for (unsigned i = 0; i < levels; ++i) {
                CUarray array = make_array(context, level);
                array->owns = false;  // goes with the mipmapped array, not alone
                made->levels.push_back(array);
                if (level.Width == 1 && level.Height <= 1 && level.Depth <= 1) break;
                level.Width = std::max<size_t>(level.Width / 2, 1);
                if (level.Height > 0) level.Height = std::max<size_t>(level.Height / 2, 1);
                if (level.Depth > 0) level.Depth = std::max<size_t>(level.Depth / 2, 1);
            }
        } catch (const Failure&) {
            for (CUarray array : made->levels) drop_array(array);
            HandlePool<CUmipmappedArray_st>::drop(made);
            throw;
        }
        *out = created(made, Tag::kMipmappedArray);
    });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmapped) {
    return api(__func__, [&] {
        for (CUarray array : checked_handle(mipmapped, Tag::kMipmappedArray)->levels) drop_array(array);
        HandlePool<CUmipmappedArray_st>::drop(mipmapped);
    });
}

CUresult cuMipmappedArrayGetLevel(CUarray* array, CUmipmappedArray mipmapped, unsigned level) {
    return api(__func__, [&] {
        check(array != nullptr && level < checked_handle(mipmapped, Tag::kMipmappedArray)->levels.size());
        *array = mipmapped->levels[level];
    });
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray mipmapped,
                                               CUdevice device) {
    return api(__func__, [&] {
        check(out != nullptr);
        uint64_t bytes = 0;
        for (CUarray array : checked_handle(mipmapped, Tag::kMipmappedArray)->levels) bytes += array->memory.bytes;
        *out = requirements(device_of(device), bytes);
    });
}

}  // extern "C"
