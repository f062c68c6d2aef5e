// The kernel contract: what a simulated kernel does follows from its name (docs/simulated-machine.md).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "addresses.hpp"
#include "mps_session.hpp"
#include "step.hpp"

namespace gemlet::sim {
namespace {

constexpr uint64_t kMeetPeriod = 50'000;  // ns; how often a kernel looks whether the others have come

size_t contract_arguments(KernelKind kind) {
    switch (kind) {
        case KernelKind::kSpin:
            return 1;
        case KernelKind::kFill:
        case KernelKind::kAdd:
        case KernelKind::kMeet:
            return 3;
        case KernelKind::kFingerprint:
            return 7;
        case KernelKind::kUnknown:
            return 0;
    }
    return 0;
}

// Either an array of pointers to arguments, or one packed buffer.
const void* packed_buffer(void** extra) {
    const void* buffer = nullptr;
    for (size_t i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2)
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[i + 1];
    return buffer;
}

void read_arguments(KernelStep& step, void** params, void** extra) {
    const Entry& entry = *step.entry;
    const size_t wanted = contract_arguments(entry.kind);
    const auto* buffer = static_cast<const unsigned char*>(packed_buffer(extra));
    check(params == nullptr || buffer == nullptr);
    check(wanted == 0 || params != nullptr || buffer != nullptr);
    for (size_t i = 0; i < wanted; ++i) {
        // A shorter parameter than .u64 is a kernel that only has the name in common with the contract.
        const bool known = entry.parameters_known && i < entry.parameters.size();
        const uint64_t bytes = std::min<uint64_t>(8, known ? entry.parameters[i].bytes : 8);
        const void* from = buffer != nullptr ? buffer + (known ? entry.parameters[i].offset : i * 8) : params[i];
        uint64_t value = 0;
        std::memcpy(&value, from, bytes);
        step.arguments.push_back(value);
    }
    // For GetParams: only what the image told us about can be copied.
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
        const Parameter& p = entry.parameters[i];
        std::vector<uint64_t> copy((p.bytes + 7) / 8);
        const void* from = buffer != nullptr ? buffer + p.offset : (params != nullptr ? params[i] : nullptr);
        if (from != nullptr) std::memcpy(copy.data(), from, p.bytes);
        step.storage.push_back(std::move(copy));
    }
}

}  // namespace

KernelStep kernel_step(const CUDA_KERNEL_NODE_PARAMS_v3& params) {
    KernelStep step;
    step.params = params;
    CUfunction function = params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
    step.entry = launchable(function).entry;
    step.profile = &require_context()->device->profile();
    const int32_t* limit = step.profile->attributes;
    check(params.gridDimX > 0 && params.gridDimY > 0 && params.gridDimZ > 0);
    check(params.blockDimX > 0 && params.blockDimY > 0 && params.blockDimZ > 0);
    const uint64_t threads = static_cast<uint64_t>(params.blockDimX) * params.blockDimY * params.blockDimZ;
    check(threads <= static_cast<uint64_t>(limit[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]));
    check(params.sharedMemBytes <=
          static_cast<unsigned>(limit[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]));
    read_arguments(step, params.kernelParams, params.extra);
    step.params.kernelParams = nullptr;
    step.params.extra = nullptr;
    return step;
}

KernelStep kernel_step(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, void** params, void** extra) {
    CUDA_KERNEL_NODE_PARAMS_v3 p{};
    p.func = function;
    p.gridDimX = gx, p.gridDimY = gy, p.gridDimZ = gz;
    p.blockDimX = bx, p.blockDimY = by, p.blockDimZ = bz;
    p.sharedMemBytes = shared;
    p.kernelParams = params;
    p.extra = extra;
    return kernel_step(p);
}

uint64_t kernel_cost(const KernelStep& step) {
    const Profile& p = *step.profile;
    switch (step.entry->kind) {
        case KernelKind::kSpin:
            return std::max(step.arguments[0], p.kernel_min_ns);
        case KernelKind::kFill:
            return std::max(
                static_cast<uint64_t>(static_cast<double>(step.arguments[1]) / p.device_to_device_bytes_per_ns),
                p.kernel_min_ns);
        case KernelKind::kAdd:
            return std::max(
                static_cast<uint64_t>(static_cast<double>(step.arguments[1]) * 16 / p.device_to_device_bytes_per_ns),
                p.kernel_min_ns);
        case KernelKind::kFingerprint: {
            const double bytes = static_cast<double>(step.params.gridDimX * step.arguments[2] * 8);
            return std::max(static_cast<uint64_t>(bytes / p.device_to_device_bytes_per_ns), p.kernel_min_ns);
        }
        case KernelKind::kMeet:
            return kMeetPeriod;
        case KernelKind::kUnknown:
            break;
    }
    return p.kernel_default_ns;
}

// Threads, blocks and shared memory bound how many blocks fit; registers are taken to be few.
int blocks_per_multiprocessor(const Profile& profile, int block, size_t shared) {
    check(block > 0);
    const int32_t* a = profile.attributes;
    int blocks = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] / block;
    blocks = std::min(blocks, a[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR]);
    if (shared > 0) {
        const size_t each = shared + static_cast<size_t>(a[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK]);
        const auto fitting = static_cast<size_t>(a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR]) / each;
        blocks = std::min(blocks, static_cast<int>(fitting));
    }
    return blocks;
}

uint32_t kernel_width(const KernelStep& step) {
    const CUDA_KERNEL_NODE_PARAMS_v3& k = step.params;
    const uint64_t blocks = static_cast<uint64_t>(k.gridDimX) * k.gridDimY * k.gridDimZ;
    const int each = blocks_per_multiprocessor(
        *step.profile, static_cast<int>(k.blockDimX * k.blockDimY * k.blockDimZ), k.sharedMemBytes);
    const int count = step.profile->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    const uint64_t room = static_cast<uint64_t>(std::max(each, 1)) * static_cast<uint64_t>(std::max(count, 1));
    return static_cast<uint32_t>(std::max<uint64_t>(std::min(blocks, room) * kWhole / room, 1));
}

bool kernel_acts(const KernelStep& step) {
    return step.entry->kind == KernelKind::kFill || step.entry->kind == KernelKind::kAdd ||
           step.entry->kind == KernelKind::kFingerprint || step.entry->kind == KernelKind::kMeet;
}

// What native/hook/swap/fingerprint.cpp has as PTX: two sums over the words of each part, written as pairs.
static void fingerprint(const std::vector<uint64_t>& arguments, uint64_t parts) {
    const uint64_t data = arguments[0], out = arguments[1], words = arguments[2];
    const uint64_t key_a = arguments[3], step_a = arguments[4], key_b = arguments[5], step_b = arguments[6];
    require_mapped("kernel 'gemlet_fingerprint' reads", data, parts * words * 8);
    const auto* word = reinterpret_cast<const uint64_t*>(data);
    auto* sums = reinterpret_cast<uint64_t*>(out);
    for (uint64_t part = 0; part < parts; ++part) {
        uint64_t a = 0, b = 0;
        for (uint64_t place = 0; place < words; ++place, ++word) {
            uint64_t x = *word + key_a + place * step_a;
            x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9;
            x = (x ^ x >> 29) * 0x94d049bb133111eb;
            a += x ^ x >> 32;
            uint64_t y = (*word ^ key_b) + place * step_b;
            y = (y ^ y >> 33) * 0xff51afd7ed558ccd;
            y = (y ^ y >> 33) * 0xc4ceb9fe1a85ec53;
            b += y ^ y >> 33;
        }
        *sums++ = a;
        *sums++ = b;
    }
}

// The word counts arrivals of all ranks; the n-th meeting is over when each has come n times.
std::function<bool()> kernel_poll(const KernelStep& step) {
    if (step.entry->kind != KernelKind::kMeet) return nullptr;
    const uintptr_t address = step.arguments[0];
    const uint64_t enough = step.arguments[1] * step.arguments[2];
    return [address, enough, arrived = false]() mutable {
        require_mapped("kernel 'meet' adds to", address, 8);
        auto* count = reinterpret_cast<uint64_t*>(address);
        if (!arrived) __atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL);
        arrived = true;
        return __atomic_load_n(count, __ATOMIC_ACQUIRE) >= enough;
    };
}

std::function<void(uint64_t, uint64_t)> kernel_effect(const KernelStep& step) {
    if (!kernel_acts(step) || step.entry->kind == KernelKind::kMeet) return nullptr;
    if (step.entry->kind == KernelKind::kFingerprint)
        return [arguments = step.arguments, parts = uint64_t{step.params.gridDimX}](uint64_t, uint64_t) {
            fingerprint(arguments, parts);
        };
    const uintptr_t base = step.arguments[0];
    const uint64_t count = step.arguments[1], value = step.arguments[2];
    if (step.entry->kind == KernelKind::kFill) {
        return [base, count, value](uint64_t, uint64_t) {
            require_mapped("kernel 'fill' writes", base, count);
            std::memset(reinterpret_cast<void*>(base), static_cast<int>(value & 0xff), count);
        };
    }
    return [base, count, value](uint64_t, uint64_t) {
        require_mapped("kernel 'add' reads and writes", base, count * 8);
        auto* words = reinterpret_cast<uint64_t*>(base);
        for (uint64_t i = 0; i < count; ++i) words[i] += value;
    };
}

void require_mapped(const char* what, uintptr_t address, uint64_t bytes) {
    const uintptr_t hole = Addresses::get().first_unmapped(address, bytes);
    if (hole == 0) return;
    char text[256];
    const int length = std::snprintf(text, sizeof text,
                                     "gemlet-sim: %s 0x%lx to 0x%lx, but no memory is mapped at 0x%lx (a real device "
                                     "reports an illegal address)\n",
                                     what, static_cast<unsigned long>(address),
                                     static_cast<unsigned long>(address + bytes), static_cast<unsigned long>(hole));
    if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) { /* nobody listens; we end anyway */
    }
    mps_report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    // The program must not survive this by a handler or a mask of its own.
    signal(SIGSEGV, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    raise(SIGSEGV);
}

}  // namespace gemlet::sim
