// Programs' questions about an address. Movable memory answers as memory of cuMemAlloc does, or as what cuMemMap
// mapped, wherever its content is; for all other addresses the driver answers. One difference cannot be hidden:
// CUDA's legacy IPC does not know mapped memory, so a handle for it is refused, and IS_LEGACY_CUDA_IPC_CAPABLE says
// so.
#include <algorithm>
#include <cstring>

#include "hook/link/say.h"
#include "hook/lookup/driver.h"
#include "hook/memory/movable.h"

using namespace gemlet::hook;

namespace {

template <class T>
CUresult put(void* out, T value) {
    std::memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
}

constexpr uint64_t kOurs = 1ull << 63;  // of numbers: the driver counts from 1

CUresult attribute(void* out, CUpointer_attribute which, CUdeviceptr address, const SwapRange& range) {
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return range.context_known == CUDA_SUCCESS ? put(out, range.context) : range.context_known;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(out, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return put(out, address);
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return put(out, static_cast<unsigned>(range.sync_memops));
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return put(out, static_cast<unsigned long long>(range.id | kOurs));
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            return put(out, static_cast<unsigned long long>((range.created ? range.block : range.id) | kOurs));
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(out, 0u);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return put(out, static_cast<int>(range.device));
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
            return put(out, 0);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put(out, range.created ? range.reserved : range.start);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(out, static_cast<size_t>(range.created ? range.reserved_bytes : range.bytes));
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            return put(out, range.start);
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
            return put(out, static_cast<size_t>(range.bytes));
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return put(out, 1);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return put(out, static_cast<unsigned long long>(range.handle_types));
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return put(out, range.access);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return put(out, range.pool);
        case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
            return put(out, -1);
        default:
            return CUDA_ERROR_INVALID_VALUE;  // a host pointer, tokens of peers
    }
}

std::optional<SwapRange> movable(CUdeviceptr address) {
    return swap_active() ? swap_find(address) : std::nullopt;
}

}  // namespace

extern "C" {

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    const auto range = movable(address);
    if (!range) return real::cuMemGetAddressRange_v2(base, bytes, address);
    if (base) *base = range->start;
    if (bytes) *bytes = range->bytes;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr address) {
    const auto range = out ? movable(address) : std::nullopt;
    if (!range) return real::cuPointerGetAttribute(out, which, address);
    return attribute(out, which, address, *range);
}

// An attribute that the address does not have is null.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* which, void** out, CUdeviceptr address) {
    const auto range = which && out ? movable(address) : std::nullopt;
    if (!range) return real::cuPointerGetAttributes(count, which, out, address);
    for (unsigned i = 0; i < count; ++i)
        if (out[i] && attribute(out[i], which[i], address, *range) != CUDA_SUCCESS)
            std::memset(out[i], 0, which[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS ? 16 : 8);
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr address) {
    if (swap_active() && value && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        unsigned on;
        std::memcpy(&on, value, sizeof on);
        if (swap_set_sync_memops(address, on != 0)) return CUDA_SUCCESS;
    }
    return real::cuPointerSetAttribute(value, which, address);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    const auto range = movable(address);
    if (!range || range->created) return real::cuIpcGetMemHandle(handle, address);  // not what was mapped, either
    say_once(Topic::kMemory,
             "memory that can move to the host cannot be shared with other processes by cuIpcGetMemHandle\n"
             "  hint: run the program in a group without --resident, on a device without `capacity`");
    return CUDA_ERROR_NOT_SUPPORTED;
}

// The receiver of the file would go on using physical memory that is no longer the program's.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                       unsigned long long flags) {
    const auto range = movable(address);
    if (range && !range->created) return CUDA_ERROR_NOT_SUPPORTED;
    if (range)
        if (CUresult refused = swap_pin_range(address, bytes)) return refused;
    return real::cuMemGetHandleForAddressRange(handle, address, bytes, type, flags);
}

}  // extern "C"
