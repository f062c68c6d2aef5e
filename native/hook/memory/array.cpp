// Arrays. Their size is computed from the description, and corrected where the driver reports it.
#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"

using namespace gemlet::hook;

namespace {

// Sparse and deferred arrays get their memory later, from cuMemCreate, which counts it.
bool brings_memory(const CUDA_ARRAY3D_DESCRIPTOR& description) {
    return !(description.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

uint64_t exact_size(CUarray array, CUdevice device) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS need{};
    auto get = own().cuArrayGetMemoryRequirements;
    return get && get(&need, array, device) == CUDA_SUCCESS ? need.size : 0;
}

uint64_t exact_size(CUmipmappedArray array, CUdevice device) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS need{};
    auto get = own().cuMipmappedArrayGetMemoryRequirements;
    return get && get(&need, array, device) == CUDA_SUCCESS ? need.size : 0;
}

CUresult destroy(CUarray array) {
    return real::cuArrayDestroy(array);
}
CUresult destroy(CUmipmappedArray array) {
    return real::cuMipmappedArrayDestroy(array);
}

template <class Array, class Call>
CUresult create(Array* array, const CUDA_ARRAY3D_DESCRIPTOR* description, unsigned int levels, Call&& call) {
    Reentry reentry;
    CUdevice device = reentry.nested() || !description ? -1 : current_device();
    if (device < 0 || !brings_memory(*description)) return call();
    uint64_t bytes = array_bytes(*description, levels);
    if (bytes >= kAbsurd) return call();
    if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call();
    if (result != CUDA_SUCCESS || !array) {
        give_back(device, bytes);
        return result;
    }
    if (const uint64_t exact = exact_size(*array, device)) {
        if (exact > bytes && !charge(device, exact - bytes)) {
            destroy(*array);
            give_back(device, bytes);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (exact < bytes) give_back(device, bytes - exact);
        bytes = exact;
    }
    arrays().put(reinterpret_cast<uint64_t>(*array),
                 {bytes, owning_context(), nullptr, device, Allocation::Kind::kOwnBlocks});
    return result;
}

template <class Array>
CUresult destroy_counted(Array array) {
    Reentry reentry;
    auto known = reentry.nested() ? std::nullopt : arrays().take(reinterpret_cast<uint64_t>(array));
    CUresult result = destroy(array);
    if (result == CUDA_SUCCESS && !reentry.nested()) array_destroyed(reinterpret_cast<uint64_t>(array));
    if (!known) return result;
    if (result == CUDA_SUCCESS)
        give_back(known->device, known->bytes);
    else
        arrays().put(reinterpret_cast<uint64_t>(array), *known);
    return result;
}

}  // namespace

extern "C" {

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* flat) {
    CUDA_ARRAY3D_DESCRIPTOR description{};
    if (flat) description = {flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
    return create(array, flat ? &description : nullptr, 1, [=] { return real::cuArrayCreate_v2(array, flat); });
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* description) {
    return create(array, description, 1, [=] { return real::cuArray3DCreate_v2(array, description); });
}

// Sizes of 32 bits, as before CUDA 3.2.
CUresult cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v1* flat) {
    CUDA_ARRAY3D_DESCRIPTOR description{};
    if (flat) description = {flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
    return create(array, flat ? &description : nullptr, 1, [=] { return real::cuArrayCreate(array, flat); });
}

CUresult cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
    CUDA_ARRAY3D_DESCRIPTOR description{};
    if (d) description = {d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags};
    return create(array, d ? &description : nullptr, 1, [=] { return real::cuArray3DCreate(array, d); });
}

CUresult cuArrayDestroy(CUarray array) {
    return destroy_counted(array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* description,
                                unsigned int levels) {
    return create(array, description, levels,
                  [=] { return real::cuMipmappedArrayCreate(array, description, levels); });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return destroy_counted(array);
}

}  // extern "C"
