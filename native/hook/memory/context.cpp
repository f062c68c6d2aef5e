// Contexts: those that this process has, by device. A context takes hundreds of MiB before the first allocation,
// so room for it is reserved before it is made; afterwards the daemon, which can see what the driver really took,
// accounts for it.
#include "hook/memory/context.h"

#include <pthread.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "hook/lookup/driver.h"
#include "hook/lookup/driver_end.h"
#include "hook/lookup/intercept.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/reentry.h"
#include "hook/memory/accounting.h"
#include "hook/memory/context_turn.h"
#include "hook/memory/ledger.h"
#include "hook/memory/movable.h"
#include "hook/memory/size.h"
#include "hook/memory/stream_end.h"
#include "hook/submit/current_context.h"
#include "hook/submit/device.h"
#include "hook/submit/governance.h"
#include "hook/submit/streams.h"
#include "wire.h"

namespace gemlet::hook {

namespace {

constexpr int kDevices = 64;

std::atomic<bool> started{false};

struct Created {
    CUcontext context;
    int usage = 1;  // cuCtxAttach and cuCtxDetach
};

struct DeviceContexts {
    std::mutex making;  // the primary context; taken before `mutex`
    std::mutex mutex;
    std::vector<Created> created;
    CUcontext primary = nullptr;  // as we last saw it; the runtime may hold one we never saw
    bool primary_active = false;
    int primary_retained = 0;

    int count() const { return static_cast<int>(created.size()) + (primary_active ? 1 : 0); }
};

// Never destroyed: contexts are still used and destroyed while the program's destructors run.
std::array<DeviceContexts, kDevices>& contexts() {
    static auto* all = new std::array<DeviceContexts, kDevices>;
    return *all;
}

DeviceContexts* contexts_of(CUdevice device) {
    return device >= 0 && device < kDevices ? &contexts()[static_cast<size_t>(device)] : nullptr;
}

bool primary_is_active(CUdevice device) {
    unsigned int flags = 0;
    int active = 0;
    auto get_state = own().cuDevicePrimaryCtxGetState;
    return get_state && get_state(device, &flags, &active) == CUDA_SUCCESS && active;
}

// Room for one context while it is being made, and until the daemon accounts for it.
class ContextRoom {
  public:
    explicit ContextRoom(CUdevice device) : turn_(device), device_(device), bytes_(context_estimate(device)) {
        announce_room(device_, bytes_);
        reserved_ = reserve(device_, bytes_, Wanted::kContext);
        if (!reserved_) cancel_room(device_, bytes_);
    }
    ~ContextRoom() {
        if (made_ || !reserved_) return;
        if (bytes_ > 0) memory_release(device_, bytes_);
        cancel_room(device_, bytes_);
    }
    // Tells the daemon how many there are now. From then on the daemon accounts for this one, so its room must not
    // also count as memory that cannot move.
    void made(int contexts) {
        made_ = true;
        if (swap_active() && bytes_ > 0) swap_hide(device_, bytes_);
        context_count_changed(device_, contexts);
        keep_room(device_, bytes_, turn_.taken());
        settle_contexts(device_);
    }
    ContextRoom(const ContextRoom&) = delete;
    ContextRoom& operator=(const ContextRoom&) = delete;
    explicit operator bool() const { return reserved_; }
    CUresult refusal() const {
        const bool nobody_governs = governance(device_in_use(device_)) == Governance::kRefused;
        return nobody_governs ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
    }

  private:
    ContextTurn turn_;  // until the daemon has accounted for the context, or the room stands for it
    CUdevice device_;
    uint64_t bytes_;
    bool reserved_ = false;
    bool made_ = false;
};

template <class Call>
CUresult create(CUcontext* context, CUdevice device, Call&& call) {
    Reentry reentry;
    DeviceContexts* known = contexts_of(device);
    if (reentry.nested() || !known) return call();
    ContextRoom room(device);
    if (!room) return room.refusal();
    CUresult result = call();
    if (result == CUDA_SUCCESS && context) {
        std::lock_guard lock(known->mutex);
        known->created.push_back({*context});
        room.made(known->count());
    }
    return result;
}

// Around a call that may destroy it; afterwards one of the next two.
void context_may_go(CUcontext context) {
    context_destroying(context);
    ends_may_go(context);
}

void context_stays(CUcontext context) {
    ends_stay_or_went(context);
    swap_context_stays(context);
}

void context_is_gone(CUcontext context) {
    captures_gone(context);
    context_handle_free();
    forget_context(context);
    ends_stay_or_went(context);
    swap_context_gone(context);
}

template <class Call>
CUresult destroy(CUcontext context, Call&& call) {
    Reentry reentry;
    if (reentry.nested()) return call();
    context_may_go(context);
    CUresult result = call();
    if (result != CUDA_SUCCESS) {
        context_stays(context);
        return result;
    }
    int its_device = -1;
    for (int device = 0; device < kDevices; ++device) {
        DeviceContexts& known = *contexts_of(device);
        std::lock_guard lock(known.mutex);
        if (std::erase_if(known.created, [=](const Created& c) { return c.context == context; })) its_device = device;
    }
    context_is_gone(context);  // from here on nobody may come across it
    if (its_device >= 0) {
        DeviceContexts& known = *contexts_of(its_device);
        std::lock_guard lock(known.mutex);
        context_count_changed(its_device, known.count());
    }
    return result;
}

// Adds to the usage of a context. Returns the new usage, or -1 for a context whose creation we did not see.
int add_usage(CUcontext context, int by) {
    for (int device = 0; device < kDevices; ++device) {
        DeviceContexts& known = *contexts_of(device);
        std::lock_guard lock(known.mutex);
        for (Created& c : known.created)
            if (c.context == context) return c.usage += by;
    }
    return -1;
}

CUresult retain_primary(CUcontext* context, CUdevice device) {
    Reentry reentry;
    DeviceContexts* known = contexts_of(device);
    if (reentry.nested() || !known) return real::cuDevicePrimaryCtxRetain(context, device);
    std::lock_guard making(known->making);
    {
        std::lock_guard lock(known->mutex);
        if (known->primary_active && primary_is_active(device)) {
            CUresult result = real::cuDevicePrimaryCtxRetain(context, device);
            if (result == CUDA_SUCCESS) ++known->primary_retained;
            return result;
        }
    }
    // Without the lock, which a thread that has the turn may be waiting for.
    ContextRoom room(device);
    if (!room) return room.refusal();
    std::lock_guard lock(known->mutex);
    CUresult result = real::cuDevicePrimaryCtxRetain(context, device);
    if (result == CUDA_SUCCESS && context) {
        known->primary = *context;
        known->primary_active = true;
        known->primary_retained = 1;
        room.made(known->count());
    }
    return result;
}

// Also one that the program got past the hook. Null if there is none.
CUcontext active_primary(CUdevice device) {
    CUcontext primary = nullptr;
    if (!primary_is_active(device) || real::cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return nullptr;
    real_address(Symbol::k_cuDevicePrimaryCtxRelease_v2) ? real::cuDevicePrimaryCtxRelease_v2(device)
                                                         : real::cuDevicePrimaryCtxRelease(device);
    return primary;
}

// What may end a primary context. Only the driver knows whether it was the last release: older runtimes retain the
// primary context through private tables.
enum class Drop : uint8_t { kRelease, kReset, kGreen };

template <class Call>
CUresult drop_primary_here(DeviceContexts& contexts, CUdevice device, Drop drop, Call&& call) {
    DeviceContexts* known = &contexts;
    const bool reset = drop == Drop::kReset;
    std::lock_guard lock(known->mutex);
    CUcontext primary = known->primary ? known->primary : active_primary(device);
    if (primary && (reset || known->primary_retained <= (drop == Drop::kRelease ? 1 : 0))) context_may_go(primary);
    CUresult result = call();
    if (result == CUDA_SUCCESS && drop == Drop::kRelease && known->primary_retained > 0) --known->primary_retained;
    if (result != CUDA_SUCCESS || (!reset && primary_is_active(device))) {
        if (primary) context_stays(primary);
        return result;
    }
    if (primary) context_is_gone(primary);
    known->primary = nullptr;
    known->primary_retained = 0;
    if (known->primary_active) {
        known->primary_active = false;
        context_count_changed(device, known->count());
    }
    return result;
}

template <class Call>
CUresult drop_primary(CUdevice device, Drop drop, Call&& call) {
    Reentry reentry;
    DeviceContexts* known = contexts_of(device);
    if (reentry.nested() || !known) return call();
    return drop_primary_here(*known, device, drop, call);
}

void note_green(CUgreenCtx green, CUdevice device) {
    CUcontext context = nullptr;
    const auto context_of = own().cuCtxFromGreenCtx;
    if (!context_of || context_of(&context, green) != CUDA_SUCCESS) return;
    if (CUcontext primary = active_primary(device); primary && primary != context)
        green_context_made(context, primary);
}

// A green context retains its device's primary one. Events of the hook's may be its own.
CUresult destroy_green(CUgreenCtx green) {
    const auto call = [=] { return real::cuGreenCtxDestroy(green); };
    Reentry reentry;
    CUcontext context = nullptr;
    CUdevice device = -1;
    const auto context_of = own().cuCtxFromGreenCtx;
    if (reentry.nested() || !context_of || context_of(&context, green) != CUDA_SUCCESS) return call();
    {
        const ContextScope scope(context);
        if (!scope.ok() || own().cuCtxGetDevice(&device) != CUDA_SUCCESS) device = -1;
    }
    context_may_go(context);
    DeviceContexts* known = contexts_of(device);
    const CUresult result = known ? drop_primary_here(*known, device, Drop::kGreen, call) : call();
    if (result == CUDA_SUCCESS) {
        forget_streams_of(context);
        green_context_gone(context);
    }
    context_stays(context);  // memory does not go with it
    context_handle_free();
    return result;
}

// In a forked child the parent's CUDA state does not exist, and a lock may be held by a thread that does not exist
// either.
void in_child() {
    if (!started.load(std::memory_order_relaxed)) return;
    started.store(false, std::memory_order_relaxed);
    context_handle_free();
    forget_green_contexts();
    new (&contexts()) std::array<DeviceContexts, kDevices>;
}

[[gnu::constructor]] void watch_forks() {
    pthread_atfork(nullptr, nullptr, in_child);
}

}  // namespace

bool cuda_started() {
    return started.load(std::memory_order_acquire);
}

CUcontext some_context(CUdevice device) {
    DeviceContexts* known = contexts_of(device);
    if (!known) return nullptr;
    const std::unique_lock lock(known->mutex, std::try_to_lock);
    if (!lock) return nullptr;
    if (known->primary_active) return known->primary;
    return known->created.empty() ? nullptr : known->created.back().context;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuInit(unsigned int flags) {
    CUresult result = real::cuInit(flags);
    if (result == CUDA_SUCCESS) {
        watch_driver_end();
        check_lookup();
        started.store(true, std::memory_order_release);
        client_start();
    }
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return retain_primary(context, device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return drop_primary(device, Drop::kRelease, [=] { return real::cuDevicePrimaryCtxRelease(device); });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return drop_primary(device, Drop::kRelease, [=] { return real::cuDevicePrimaryCtxRelease_v2(device); });
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return drop_primary(device, Drop::kReset, [=] { return real::cuDevicePrimaryCtxReset(device); });
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return drop_primary(device, Drop::kReset, [=] { return real::cuDevicePrimaryCtxReset_v2(device); });
}

CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
    return create(context, device, [=] { return real::cuCtxCreate(context, flags, device); });
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
    return create(context, device, [=] { return real::cuCtxCreate_v2(context, flags, device); });
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned int flags,
                        CUdevice device) {
    return create(context, device, [=] { return real::cuCtxCreate_v3(context, affinity, count, flags, device); });
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned int flags, CUdevice device) {
    return create(context, device, [=] { return real::cuCtxCreate_v4(context, parameters, flags, device); });
}

CUresult cuCtxDestroy(CUcontext context) {
    return destroy(context, [=] { return real::cuCtxDestroy(context); });
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(context, [=] { return real::cuCtxDestroy_v2(context); });
}

CUresult cuCtxAttach(CUcontext* context, unsigned int flags) {
    CUresult result = real::cuCtxAttach(context, flags);
    if (result == CUDA_SUCCESS && context) add_usage(*context, 1);
    return result;
}

CUresult cuCtxDetach(CUcontext context) {
    if (add_usage(context, -1) == 0) return destroy(context, [=] { return real::cuCtxDetach(context); });
    return real::cuCtxDetach(context);
}

// The program sees the limit as the size of the device.
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    CUresult result = real::cuDeviceTotalMem_v2(bytes, device);
    if (result != CUDA_SUCCESS || !bytes) return result;
    MemoryView view = memory_view(device);
    if (view.limit != gemlet::wire::kNoLimit) *bytes = view.limit;
    return result;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    CUresult result = real::cuMemGetInfo_v2(free, total);
    CUdevice device = result == CUDA_SUCCESS ? current_device() : -1;
    if (device < 0) return result;
    refresh_elastic(device);
    MemoryView view = memory_view(device);
    // The memory that is free now does not matter where the memory of others can move away.
    if (swap_active() && free) *free = swap_free_bytes(device, *free, view.limit - std::min(view.limit, view.used));
    if (view.limit == gemlet::wire::kNoLimit) return result;
    const uint64_t left = view.used < view.limit ? view.limit - view.used : 0;
    if (free) *free = std::min<uint64_t>(*free, left);
    if (total) *total = view.limit;
    return result;
}

// Sizes of 32 bits, as before CUDA 3.2.

CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
    CUresult result = real::cuDeviceTotalMem(bytes, device);
    if (result != CUDA_SUCCESS || !bytes) return result;
    const MemoryView view = memory_view(device);
    if (view.limit < *bytes) *bytes = static_cast<unsigned int>(view.limit);
    return result;
}

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
    CUresult result = real::cuMemGetInfo(free, total);
    size_t left = 0, limit = 0;
    if (result != CUDA_SUCCESS || cuMemGetInfo_v2(&left, &limit) != CUDA_SUCCESS) return result;
    if (free && left < *free) *free = static_cast<unsigned int>(left);
    if (total && limit < *total) *total = static_cast<unsigned int>(limit);
    return result;
}

// Contexts that share with OpenGL and VDPAU.

CUresult cuGLCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
    return create(context, device, [=] { return real::cuGLCtxCreate(context, flags, device); });
}

CUresult cuGLCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
    return create(context, device, [=] { return real::cuGLCtxCreate_v2(context, flags, device); });
}

CUresult cuVDPAUCtxCreate(CUcontext* context, unsigned int flags, CUdevice device, VdpDevice vdp,
                          VdpGetProcAddress* get) {
    return create(context, device, [=] { return real::cuVDPAUCtxCreate(context, flags, device, vdp, get); });
}

CUresult cuVDPAUCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device, VdpDevice vdp,
                             VdpGetProcAddress* get) {
    return create(context, device, [=] { return real::cuVDPAUCtxCreate_v2(context, flags, device, vdp, get); });
}

CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    Reentry reentry;
    if (!reentry.nested() && !room_for_unknown(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = real::cuGreenCtxCreate(context, resources, device, flags);
    if (result == CUDA_SUCCESS && !reentry.nested()) note_green(*context, device);
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    return destroy_green(context);
}

}  // extern "C"
