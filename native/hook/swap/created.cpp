// cuMemCreate and cuMemRelease of memory that moves, and what programs ask about its handles.
#include "hook/swap/created.h"

#include "hook/memory/location.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"
#include "hook/swap/reservation.h"
#include "hook/swap/stream_ordered.h"
#include "hook/swap/views.h"

namespace gemlet::hook {

namespace {

std::atomic<uint64_t> next_id{1};

// Plain memory of a device. What is compressed or made for tiles has a form that a copy does not keep.
bool is_plain(const CUmemAllocationProp& p) {
    constexpr unsigned kExported = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    return p.type == CU_MEM_ALLOCATION_TYPE_PINNED && p.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           (static_cast<unsigned>(p.requestedHandleTypes) & ~kExported) == 0 && !p.win32HandleMetaData &&
           p.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE && p.allocFlags.usage == 0;
}

}  // namespace

FoundCreated find_created(CUmemGenericAllocationHandle handle, std::unique_lock<std::mutex>& lock) {
    for (CUdevice device = 0; device < kMaxDevices; ++device) {
        SwapSpace* space = swap_space(device);
        if (!space) continue;
        std::unique_lock held(space->mutex);
        const auto found = space->created.find(handle);
        if (found == space->created.end() || found->second->handles == 0) continue;
        lock = std::move(held);
        return {space, found->second.get()};
    }
    return {nullptr, nullptr};
}

CUresult free_created(SwapSpace& space, Created& created, std::unique_lock<std::mutex>& lock) {
    if (CUresult failed = free_reservation(space, created.home, lock)) return failed;
    std::erase_if(space.views, [&](const auto& entry) { return entry.second.created == &created; });
    space.created.erase(created.name());
    return CUDA_SUCCESS;
}

std::optional<CUresult> swap_create(CUmemGenericAllocationHandle* handle, uint64_t bytes,
                                    const CUmemAllocationProp& properties) {
    SwapSpace* space = is_plain(properties) ? swap_space(device_at(properties.location)) : nullptr;
    if (!space || !space->moves || !handle || bytes == 0 || bytes >= kAbsurd || bytes % kBlock != 0)
        return std::nullopt;
    auto made = std::make_unique<Created>();
    made->bytes = bytes;
    made->id = next_id.fetch_add(1);
    made->properties = std::make_shared<const CUmemAllocationProp>(properties);
    space->see_context();
    std::lock_guard allocating(space->allocating);
    Reservation* home = nullptr;
    const auto make = [&] { return make_reservation(*space, bytes, nullptr, nullptr, home, made->properties); };
    CUresult result = make();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && release_freed(*space, 0)) result = make();
    if (result != CUDA_SUCCESS) return result;
    std::lock_guard lock(space->mutex);
    made->home = home->start;
    *handle = made->name();
    space->created[*handle] = std::move(made);
    return CUDA_SUCCESS;
}

std::optional<CUresult> swap_release(CUmemGenericAllocationHandle handle) {
    std::unique_lock<std::mutex> lock;
    auto [space, created] = find_created(handle, lock);
    if (!space) return std::nullopt;
    if (created->handles > 1) {
        --created->handles;
        return CUDA_SUCCESS;
    }
    if (!created->moves()) {
        if (created->real) return std::nullopt;  // the driver's, too: swap_released() is called
        space->created.erase(handle);            // it was to be made anew, and was not
        return CUDA_SUCCESS;
    }
    created->handles = 0;  // nobody finds it by its handle from here on
    if (created->views > 0) return CUDA_SUCCESS;
    lock.unlock();
    std::lock_guard allocating(space->allocating);
    lock.lock();
    if (!created->moves()) {  // another thread was about to have it made anew
        space->created.erase(handle);
        return CUDA_SUCCESS;
    }
    const CUresult failed = free_created(*space, *created, lock);
    if (failed != CUDA_SUCCESS) created->handles = 1;
    return failed;
}

void swap_released(CUmemGenericAllocationHandle handle) {
    std::unique_lock<std::mutex> lock;
    if (auto [space, created] = find_created(handle, lock); space) space->created.erase(handle);
}

CUmemGenericAllocationHandle swap_real(CUmemGenericAllocationHandle handle) {
    std::unique_lock<std::mutex> lock;
    auto [space, created] = find_created(handle, lock);
    return space && created->real ? created->real : handle;
}

std::optional<CUresult> swap_retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
    std::unique_lock<std::mutex> lock;
    auto [space, view] = find_view(address, lock);
    if (!space) return std::nullopt;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    ++view->created->handles;
    *handle = view->created->name();
    return CUDA_SUCCESS;
}

std::optional<CUmemAllocationProp> swap_properties(CUmemGenericAllocationHandle handle) {
    std::unique_lock<std::mutex> lock;
    auto [space, created] = find_created(handle, lock);
    if (!space) return std::nullopt;
    return *created->properties;
}

}  // namespace gemlet::hook
