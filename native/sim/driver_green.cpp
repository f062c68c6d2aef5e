// Green contexts: the SMs in groups, and streams that belong to some of them.
//
// The rules are the driver's: sizes, groups that do not overlap within a split, descriptors of one split only. What
// is not simulated is their purpose: a kernel on such a stream takes as long as on any other.
#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "contexts.hpp"
#include "device.hpp"
#include "mps_session.hpp"

using namespace gemlet::sim;

namespace {

constexpr unsigned kStep = 8;  // of compute capability 9.0: the smallest group, and what sizes are multiples of
constexpr size_t kMost = 256;
using Sms = std::bitset<kMost>;

// What a CUdevResource hides in its padding.
struct Hidden {
    uint64_t split;  // 0: the whole device
    int device;
    std::array<uint64_t, kMost / 64> sms;
};
static_assert(sizeof(Hidden) <= sizeof(CUdevResource::_internal_padding));

struct Description {
    int device;
    Sms sms;
};

struct Green {
    CUdevice device;
    Sms sms;
    CUcontext context;
};

std::mutex mutex;  // guards the two maps
std::map<CUdevResourceDesc, std::unique_ptr<Description>> descriptions;
std::map<CUgreenCtx, std::unique_ptr<Green>> greens;
std::atomic<uint64_t> splits{1};

Sms sms_of(const CUdevResource& resource, Hidden& hidden) {
    check(resource.type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    std::memcpy(&hidden, resource._internal_padding, sizeof hidden);
    Sms sms;
    for (size_t sm = 0; sm < kMost; ++sm) sms[sm] = (hidden.sms[sm / 64] >> (sm % 64) & 1) != 0;
    check(sms.any() && sms.count() == resource.sm.smCount);
    return sms;
}

CUdevResource resource_of(const Sms& sms, uint64_t split, CUdevice device) {
    CUdevResource resource{};
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource.sm.smCount = static_cast<unsigned>(sms.count());
    resource.sm.minSmPartitionSize = kStep;
    resource.sm.smCoscheduledAlignment = kStep;
    Hidden hidden{split, device, {}};
    for (size_t sm = 0; sm < kMost; ++sm)
        if (sms[sm]) hidden.sms[sm / 64] |= uint64_t{1} << (sm % 64);
    std::memcpy(resource._internal_padding, &hidden, sizeof hidden);
    return resource;
}

Green& checked_green(CUgreenCtx context) {
    const auto found = greens.find(context);
    check(found != greens.end(), CUDA_ERROR_INVALID_CONTEXT);
    return *found->second;
}

// It goes with the primary one, if that is reset.
bool is_there(CUcontext context, CUgreenCtx handle) {
    return context->tag == Tag::kContext && context->as_green == handle;
}

// Takes `count` SMs out of `left`, the lowest first.
Sms take(Sms& left, unsigned count) {
    Sms taken;
    for (size_t sm = 0; sm < kMost && taken.count() < count; ++sm) {
        if (!left[sm]) continue;
        taken[sm] = true;
        left[sm] = false;
    }
    return taken;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
    return api(__func__, [&] {
        check(resource != nullptr);
        check(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
        Sms all;
        const int count = mps_share(device_of(device)).multiprocessors;
        for (int sm = 0; sm < count; ++sm) all[static_cast<size_t>(sm)] = true;
        *resource = resource_of(all, 0, device);
    });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups, const CUdevResource* input,
                                     CUdevResource* remaining, unsigned flags, unsigned least) {
    return api(__func__, [&] {
        check(groups != nullptr && input != nullptr && flags <= CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE);
        Hidden hidden;
        Sms left = sms_of(*input, hidden);
        check(least <= left.count());
        const unsigned size = std::max(1u, (least + kStep - 1) / kStep) * kStep;
        const unsigned most = static_cast<unsigned>(left.count()) / size;
        check(most > 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        if (result == nullptr) {
            *groups = most;
            return;
        }
        check(*groups > 0);
        *groups = std::min(*groups, most);
        const uint64_t split = splits++;
        for (unsigned group = 0; group < *groups; ++group)
            result[group] = resource_of(take(left, size), split, hidden.device);
        if (remaining == nullptr) return;
        *remaining = CUdevResource{};
        if (left.any()) *remaining = resource_of(left, split, hidden.device);
    });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
    return api(__func__, [&] {
        check(description != nullptr && resources != nullptr && count > 0);
        auto made = std::make_unique<Description>();
        Hidden first;
        made->sms = sms_of(resources[0], first);
        made->device = first.device;
        for (unsigned i = 1; i < count; ++i) {
            Hidden hidden;
            const Sms sms = sms_of(resources[i], hidden);
            check(hidden.split == first.split && hidden.split != 0 && (made->sms & sms).none(),
                  CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
            made->sms |= sms;
        }
        std::lock_guard lock(mutex);
        *description = reinterpret_cast<CUdevResourceDesc>(made.get());
        descriptions[*description] = std::move(made);
    });
}

CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc description, CUdevice device, unsigned flags) {
    return api(__func__, [&] {
        check(context != nullptr && flags == CU_GREEN_CTX_DEFAULT_STREAM);
        std::lock_guard lock(mutex);
        const auto found = descriptions.find(description);
        check(found != descriptions.end() && found->second->device == device);
        auto made = std::make_unique<Green>(Green{device, found->second->sms, nullptr});
        primary_retain(device);
        *context = reinterpret_cast<CUgreenCtx>(made.get());
        made->context = create_green(device, *context, static_cast<int>(made->sms.count()));
        greens[*context] = std::move(made);
    });
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    return api(__func__, [&] {
        std::lock_guard lock(mutex);
        const Green& green = checked_green(context);
        if (is_there(green.context, context)) {
            destroy_green(green.context);
            primary_release(green.device, false);
        }
        greens.erase(context);
    });
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx context, CUdevResource* resource, CUdevResourceType type) {
    return api(__func__, [&] {
        check(resource != nullptr);
        check(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
        std::lock_guard lock(mutex);
        const Green& green = checked_green(context);
        *resource = resource_of(green.sms, 0, green.device);
    });
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
    return api(__func__, [&] {
        check(stream != nullptr && flags == CU_STREAM_NON_BLOCKING);
        std::lock_guard lock(mutex);
        *stream = create_stream(checked(checked_green(context).context), flags, std::clamp(priority, -5, 0));
    });
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
    return api(__func__, [&] {
        check(context != nullptr);
        std::lock_guard lock(mutex);
        *context = checked(checked_green(green).context);
    });
}

}  // extern "C"
