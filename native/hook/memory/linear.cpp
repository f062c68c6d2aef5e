// Linear allocations: cuMemAlloc, its pitched and managed relatives, and cuMemFree for all memory that it may
// free.
#include <algorithm>

#include "hook/lookup/driver.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/managed.h"
#include "hook/memory/movable.h"
#include "hook/memory/shared_growth.h"
#include "hook/memory/size.h"
#include "hook/memory/slab.h"
#include "hook/submit/current_context.h"

using namespace gemlet::hook;

namespace {

using Kind = Allocation::Kind;

// An allocation with blocks of its own. `actual()` is what it takes, known only afterwards for pitched memory.
template <class Call, class Actual>
CUresult allocate_blocks(CUdevice device, CUdeviceptr* pointer, uint64_t expected, Call&& call, Actual&& actual) {
    uint64_t bytes = round_up(expected, kBlock);
    if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call();
    if (result != CUDA_SUCCESS || !pointer) {
        give_back(device, bytes);
        return result;
    }
    const uint64_t taken = round_up(actual(), kBlock);
    if (taken > bytes && !charge(device, taken - bytes)) {
        real::cuMemFree_v2(*pointer);
        give_back(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (taken < bytes) give_back(device, bytes - taken);
    remember(*pointer, {taken, owning_context(), nullptr, device, Kind::kOwnBlocks});
    return result;
}

enum class Slot : uint8_t { kTaken, kNone, kLookAgain };

// If the slabs we know may have room, nothing is charged at first: charging a whole slab would refuse a program at
// its limit the last bytes of a slab that it has paid for. kLookAgain: others were faster, so that there may be room
// where they are.
template <class Call>
Slot take_slot(const Allocation& allocation, const SlabRequest& request, CUdeviceptr* pointer, CUresult& result,
               Call&& call) {
    const CUdevice device = allocation.device;
    bool charged = false;
    const auto expected_growth = [&] {
        charged = !slabs_have_room(device, allocation.bytes);
        return Growth{charged ? kBlock : 0, request.others()};
    };
    if (!charge_growth(device, expected_growth, [] {})) return Slot::kNone;
    result = call();
    if (result != CUDA_SUCCESS || !pointer) {
        if (charged) give_back(device, kBlock);
        return Slot::kTaken;
    }
    // Several threads may enter a slab before one of them has charged it. None returns from one that is not charged.
    const bool paid = enter_slab(*pointer, allocation);
    if (!paid && !charged && !(charged = charge(device, kBlock)) && !is_charged_slab(*pointer)) {
        leave_slab(*pointer, allocation);
        real::cuMemFree_v2(*pointer);
        return request.others() > 0 ? Slot::kLookAgain : Slot::kNone;
    }
    if (charged && (paid || !charge_slab(*pointer))) give_back(device, kBlock);
    remember(*pointer, allocation);
    return Slot::kTaken;
}

// A small allocation.
template <class Call>
CUresult allocate_in_slab(CUdevice device, CUdeviceptr* pointer, uint64_t expected, Call&& call) {
    constexpr int kTries = 100;
    constexpr uint64_t kLookAgain = 1'000'000;
    const Allocation allocation{round_up(expected, kSmallUnit), owning_context(), nullptr, device, Kind::kSlab};
    const SlabRequest request(device);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    for (int tries = 0; tries < kTries; ++tries, sleep_ns(kLookAgain)) {
        const Slot slot = take_slot(allocation, request, pointer, result, call);
        if (slot == Slot::kTaken) return result;
        if (slot == Slot::kNone) break;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call, class Actual>
CUresult allocate(CUdeviceptr* pointer, uint64_t expected, Call&& call, Actual&& actual) {
    Reentry reentry;
    CUdevice device = reentry.nested() ? -1 : current_device();
    // Nothing to count: the driver reports what is wrong with the call.
    if (device < 0 || expected == 0 || expected >= kAbsurd) return call();
    if (shares_slab(expected)) return allocate_in_slab(device, pointer, expected, call);
    return allocate_blocks(device, pointer, expected, call, actual);
}

template <class Call>
CUresult release(CUdeviceptr pointer, Call&& call) {
    Reentry reentry;
    return reentry.nested() ? call() : free_remembered(pointer, call);
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
    if (managed_in_place()) [[unlikely]]
        return allocate(pointer, bytes, [=] { return allocate_managed(pointer, bytes); }, [=] { return bytes; });
    if (swap_active()) [[unlikely]] {
        if (auto result = swap_allocate(pointer, bytes)) return *result;
    }
    return allocate(pointer, bytes, [=] { return real::cuMemAlloc_v2(pointer, bytes); }, [=] { return bytes; });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned int element) {
    if (swap_active()) [[unlikely]] {
        if (auto result = swap_allocate_pitch(pointer, pitch, width, height, element)) return *result;
    }
    const uint64_t rows = std::max<uint64_t>(1, height);
    const uint64_t row = width < kAbsurd ? round_up(width, kPitchUnit) : kAbsurd;
    const uint64_t expected = row < kAbsurd / rows ? row * rows : kAbsurd;
    return allocate(
        pointer, expected, [=] { return real::cuMemAllocPitch_v2(pointer, pitch, width, height, element); },
        [=] { return pitch ? *pitch * rows : expected; });
}

// Managed memory may be resident as a whole at any time, so it counts as a whole.
CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
    return allocate(
        pointer, bytes, [=] { return real::cuMemAllocManaged(pointer, bytes, flags); }, [=] { return bytes; });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (swap_active()) [[unlikely]] {
        if (auto result = swap_free(pointer)) return *result;
    }
    return release(pointer, [=] { return real::cuMemFree_v2(pointer); });
}

// Addresses of 32 bits, as before CUDA 3.2.

CUresult cuMemAlloc(CUdeviceptr_v1* pointer, unsigned int bytes) {
    CUdeviceptr wide = 0;
    return allocate(
        pointer ? &wide : nullptr, bytes,
        [&] {
            CUresult result = real::cuMemAlloc(pointer, bytes);
            if (result == CUDA_SUCCESS && pointer) wide = *pointer;
            return result;
        },
        [=] { return bytes; });
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* pointer, unsigned int* pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
    CUdeviceptr wide = 0;
    const uint64_t rows = std::max(1u, height);
    const uint64_t expected = round_up(width, kPitchUnit) * rows;
    return allocate(
        pointer ? &wide : nullptr, expected,
        [&] {
            CUresult result = real::cuMemAllocPitch(pointer, pitch, width, height, element);
            if (result == CUDA_SUCCESS && pointer) wide = *pointer;
            return result;
        },
        [=] { return pitch ? *pitch * rows : expected; });
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    return release(pointer, [=] { return real::cuMemFree(pointer); });
}

}  // extern "C"
