// What an address is.
#include <cstring>

#include "addresses.hpp"
#include "handles.hpp"
#include "visible_devices.hpp"

using namespace gemlet::sim;

namespace {

template <class T>
void put(void* out, T value) {
    std::memcpy(out, &value, sizeof value);
}

// What the program reserved, of which only a part may be mapped.
std::pair<uintptr_t, uint64_t> whole(const Range& range) {
    if (range.place == Place::kMapped) return Addresses::get().reservation_of(range.base);
    return {range.base, range.bytes};
}

// False where the attribute makes no sense for the address.
bool attribute(void* out, CUpointer_attribute which, CUdeviceptr address) {
    const auto range = Addresses::get().find(address);
    if (!range) return false;
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            put(out, range->place == Place::kMapped ? nullptr : range->context);
            return true;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            put(out, range->on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
            return true;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            put(out, address);
            return true;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (range->on_device() && range->place != Place::kManaged) return false;
            put(out, address);
            return true;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            put(out, 0u);
            return true;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            put(out, static_cast<unsigned long long>(range->id));
            return true;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            put(out, range->place == Place::kManaged ? 1u : 0u);
            return true;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            put(out, range->device < 0 ? range->device : ordinal_of(static_cast<uint32_t>(range->device)));
            return true;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            put(out, range->place == Place::kDevice ? 1 : 0);
            return true;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            put(out, static_cast<CUdeviceptr>(whole(*range).first));
            return true;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            put(out, static_cast<size_t>(whole(*range).second));
            return true;
        case CU_POINTER_ATTRIBUTE_MAPPED:
            put(out, 1);
            return true;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            put(out, range->place == Place::kMapped ? static_cast<unsigned long long>(range->flags) : 0ull);
            return true;
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            put(out, 0);
            return true;
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            put(out, range->accessible ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                       : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
            return true;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            put(out, range->place == Place::kPooled ? range->owner : nullptr);
            return true;
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
            put(out, static_cast<size_t>(range->bytes));
            return true;
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            put(out, static_cast<CUdeviceptr>(range->base));
            return true;
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            put(out, static_cast<unsigned long long>(range->id));
            return true;
        default:
            return false;
    }
}

size_t size_of(CUpointer_attribute which) {
    switch (which) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return 4;
        default:
            return 8;
    }
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr address) {
    return api(__func__, [&] {
        check(out != nullptr);
        check(attribute(out, which, address));
    });
}

// Unlike the single query this one never fails on an address that CUDA does not know: the answers are zero.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** out, CUdeviceptr address) {
    return api(__func__, [&] {
        check(which != nullptr && out != nullptr);
        for (unsigned i = 0; i < count; ++i) {
            if (out[i] == nullptr || attribute(out[i], which[i], address)) continue;
            std::memset(out[i], 0, size_of(which[i]));
            if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) put(out[i], -2);
        }
    });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr address) {
    return api(__func__, [&] {
        check(value != nullptr && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
        check(Addresses::get().find(address).has_value());
    });
}

}  // extern "C"
