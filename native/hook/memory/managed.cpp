#include "hook/memory/managed.h"

#include <cstdlib>
#include <cstring>

#include "hook/link/say.h"
#include "hook/lookup/driver.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/size.h"
#include "hook/submit/current_context.h"

namespace gemlet::hook {

namespace {

enum class Managed { kOff, kChecked, kForced };

constexpr uint64_t kSpare = 64 * kMiB;  // what the driver takes for itself meanwhile

Managed chosen() {
    static const Managed mode = [] {
        const char* said = std::getenv("GEMLET_MANAGED");
        if (!said || !*said) return Managed::kOff;
        return std::strcmp(said, "force") == 0 ? Managed::kForced : Managed::kChecked;
    }();
    return mode;
}

// Brings the pages to the device, on a stream of its own: a capture or the program's work in progress does not
// matter.
CUresult populate(CUdeviceptr pointer, size_t bytes, CUdevice device) {
    const RelaxedCapture relaxed;
    CUstream stream = nullptr;
    if (CUresult failed = own().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) return failed;
    CUresult result = real::cuMemPrefetchAsync_v2(pointer, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, {device}}, 0, stream);
    if (result == CUDA_ERROR_NOT_SUPPORTED) result = real::cuMemPrefetchAsync(pointer, bytes, device, stream);
    if (result == CUDA_SUCCESS) result = own().cuStreamSynchronize(stream);
    own().cuStreamDestroy_v2(stream);
    // A device that cannot fault on pages has all managed memory from the start.
    return result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : result;
}

}  // namespace

bool managed_in_place() {
    return chosen() != Managed::kOff && !Reentry{}.nested();
}

CUresult allocate_managed(CUdeviceptr* pointer, size_t bytes) {
    if (chosen() == Managed::kForced) return real::cuMemAllocManaged(pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    size_t free = 0, total = 0;
    if (CUresult failed = real::cuMemGetInfo_v2(&free, &total)) return failed;
    if (bytes > free || free - bytes < kSpare) {
        constexpr double gib = 1 << 30;
        say_once(Topic::kMemory,
                 "%.2f GiB of managed memory are asked for, and %.2f GiB of the device are free\n"
                 "  hint: allow more with `--managed=force`, or move memory without page faults by `--resident` in "
                 "its place",
                 double(bytes) / gib, double(free) / gib);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (CUresult failed = real::cuMemAllocManaged(pointer, bytes, CU_MEM_ATTACH_GLOBAL)) return failed;
    if (CUresult failed = populate(*pointer, bytes, current_device())) {
        real::cuMemFree_v2(*pointer);
        return failed;
    }
    return CUDA_SUCCESS;
}

}  // namespace gemlet::hook
