// Memory that others made: opened handles, pointers of imported pools, memory of graphics libraries. A process that
// holds on to memory pays for it: its maker may end, or may not be governed at all. On a device that is not the
// calling thread's own the maker alone pays.
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/submit/device.h"

namespace gemlet::hook {

namespace {

struct Opened {
    uint64_t bytes;
    CUdevice device;
    CUcontext context;
    int times;  // a handle that is opened again gives the same pointer
};

struct Imported {
    std::mutex mutex;
    std::unordered_map<uint64_t, Opened> by_handle;
};

Imported& imported() {
    static auto* all = new Imported;
    return *all;
}

std::optional<Opened> close_once(uint64_t handle) {
    std::lock_guard lock(imported().mutex);
    auto found = imported().by_handle.find(handle);
    if (found == imported().by_handle.end()) return std::nullopt;
    const Opened opened = found->second;
    if (--found->second.times == 0) imported().by_handle.erase(found);
    return opened;
}

void open_again(uint64_t handle, const Opened& opened) {
    std::lock_guard lock(imported().mutex);
    auto [entry, fresh] = imported().by_handle.try_emplace(handle, opened);
    entry->second.times = fresh ? 1 : entry->second.times + 1;
}

// Bytes behind a pointer if they lie on the device.
uint64_t bytes_at(CUdeviceptr pointer, CUdevice device) {
    int ordinal = -1;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    const bool here =
        real::cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS &&
        ordinal == device;
    const bool known = here && real::cuMemGetAddressRange_v2(&base, &bytes, pointer) == CUDA_SUCCESS;
    return known && bytes < kAbsurd ? round_up(bytes, kBlock) : 0;
}

template <class Call>
CUresult open(CUdeviceptr* pointer, Call&& call) {
    Reentry reentry;
    CUresult result = call();
    if (result != CUDA_SUCCESS || reentry.nested() || !pointer) return result;
    tied.store(1, std::memory_order_relaxed);
    const CUdevice device = current_device();
    // Held while it is charged: other threads may open the handle, too, and one of them pays.
    std::unique_lock lock(imported().mutex);
    auto& by_handle = imported().by_handle;
    if (auto known = by_handle.find(*pointer); known != by_handle.end()) {
        ++known->second.times;
        return result;
    }
    const uint64_t bytes = bytes_at(*pointer, device);
    if (bytes == 0) return result;
    if (!charge(device, bytes)) {
        lock.unlock();
        real::cuIpcCloseMemHandle(*pointer);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    by_handle.emplace(*pointer, Opened{bytes, device, owning_context(), 1});
    return result;
}

template <class Call>
CUresult close(uint64_t handle, Call&& call) {
    const std::optional<Opened> opened = close_once(handle);
    CUresult result = call();
    if (!opened) return result;
    if (result != CUDA_SUCCESS)
        open_again(handle, *opened);
    else if (opened->times == 1)
        give_back(opened->device, opened->bytes);
    return result;
}

}  // namespace

void forget_imported() {
    new (&imported()) Imported;
}

void forget_imported(CUcontext context) {
    std::lock_guard lock(imported().mutex);
    std::erase_if(imported().by_handle, [=](const auto& entry) {
        const Opened& opened = entry.second;
        if (opened.context == context) give_back(opened.device, opened.bytes);
        return opened.context == context;
    });
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
    return open(pointer, [&] { return real::cuIpcOpenMemHandle(pointer, handle, flags); });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
    return open(pointer, [&] { return real::cuIpcOpenMemHandle_v2(pointer, handle, flags); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    return close(pointer, [=] { return real::cuIpcCloseMemHandle(pointer); });
}

// Freed like any other pointer.
CUresult cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
    Reentry reentry;
    CUresult result = real::cuMemPoolImportPointer(pointer, pool, data);
    if (result != CUDA_SUCCESS || reentry.nested() || !pointer) return result;
    const CUdevice device = current_device();
    const uint64_t bytes = bytes_at(*pointer, device);
    if (bytes == 0) return result;
    if (!charge(device, bytes)) {
        real::cuMemFree_v2(*pointer);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const Allocation allocation{bytes, owning_context(), nullptr, device, Allocation::Kind::kOwnBlocks};
    remember(*pointer, allocation);
    return result;
}

CUresult cuImportExternalMemory(CUexternalMemory* memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
    Reentry reentry;
    const CUdevice device = reentry.nested() || !description || !memory ? -1 : current_device();
    if (device < 0 || description->size >= kAbsurd) return real::cuImportExternalMemory(memory, description);
    const uint64_t bytes = round_up(description->size, kBlock);
    if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real::cuImportExternalMemory(memory, description);
    if (result == CUDA_SUCCESS)
        open_again(reinterpret_cast<uint64_t>(*memory), {bytes, device, owning_context(), 1});
    else
        give_back(device, bytes);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    return close(reinterpret_cast<uint64_t>(memory), [=] { return real::cuDestroyExternalMemory(memory); });
}

}  // extern "C"
