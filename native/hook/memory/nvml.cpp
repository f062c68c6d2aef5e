#include "hook/memory/nvml.h"

#include <dlfcn.h>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "hook/link/connection.h"
#include "hook/lookup/intercept.h"
#include "hook/lookup/own_calls.h"
#include "hook/memory/context.h"
#include "hook/submit/client.h"
#include "wire.h"

// nvml.h is not among the build's headers; these are its declarations, fixed by NVML's ABI promise.
extern "C" {
struct nvmlMemory_t {
    unsigned long long total, free, used;
};
struct nvmlMemory_v2_t {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};
using nvmlDevice_t = struct nvmlDevice_st*;
using nvmlReturn_t = int;  // 0 is success
#define NVML_API __attribute__((visibility("default")))
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
}

namespace gemlet::hook {

namespace {

constexpr nvmlReturn_t kFunctionNotFound = 13;
constexpr char kLibrary[] = "libnvidia-ml.so.1";

struct Entry {
    const char* name;
    void* hook;
};

// Constant data but for relocation: usable before any constructor ran.
const Entry entries[] = {
#define NVML(name) {#name, reinterpret_cast<void*>(&::name)},
#include "hook/lookup/hooks.def"
};
constinit std::atomic<void*> reals[std::size(entries)];

const Entry* entry_of(std::string_view name) {
    for (const Entry& entry : entries)
        if (name == entry.name) return &entry;
    return nullptr;
}

std::atomic<void*>& found_real(const Entry& entry) {
    return reals[&entry - entries];
}

void* real_of(const Entry& entry) {
    void* real = found_real(entry).load(std::memory_order_relaxed);
    if (real) return real;
    if (void* library = loaded_library(kLibrary)) real = quiet_dlsym(library, entry.name);
    found_real(entry).store(real, std::memory_order_relaxed);
    return real;
}

// A process that belongs to no group sees the machine as it is, and never connects because of a monitor's question.
bool is_client() {
    return destination().socket[0] != 0;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// "GPU-6f36cb1a-7b5c-..." or "MIG-...": the digits are the CUuuid's bytes in order.
bool parse_uuid(const char* text, CUuuid& uuid) {
    const char* c = std::strchr(text, '-');
    int digits = 0;
    unsigned char bytes[16] = {};
    for (; c && *c; ++c) {
        int digit = hex_digit(*c);
        if (digit < 0) continue;
        if (digits == 32) return false;
        bytes[digits / 2] = static_cast<unsigned char>(bytes[digits / 2] << 4 | digit);
        ++digits;
    }
    std::memcpy(uuid.bytes, bytes, sizeof bytes);
    return digits == 32;
}

// NVML counts every GPU of the machine, CUDA the visible ones in its own order: the UUID is what both agree on.
CUdevice ordinal_of(const CUuuid& wanted) {
    if (!cuda_started()) return -1;
    auto get_uuid = own().cuDeviceGetUuid_v2 ? own().cuDeviceGetUuid_v2 : own().cuDeviceGetUuid;
    CUuuid uuid;
    for (CUdevice ordinal = 0; get_uuid && get_uuid(&uuid, ordinal) == CUDA_SUCCESS; ++ordinal)
        if (std::memcmp(uuid.bytes, wanted.bytes, sizeof uuid.bytes) == 0) return ordinal;
    return -1;
}

MemoryView view_of(nvmlDevice_t device) {
    constexpr MemoryView kUnlimited{wire::kNoLimit, 0};
    using GetUuid = nvmlReturn_t (*)(nvmlDevice_t, char*, unsigned int);
    if (!is_client()) return kUnlimited;
    void* library = loaded_library(kLibrary);
    auto get_uuid = reinterpret_cast<GetUuid>(library ? quiet_dlsym(library, "nvmlDeviceGetUUID") : nullptr);
    char text[96];
    CUuuid uuid;
    if (!get_uuid || get_uuid(device, text, sizeof text) != 0 || !parse_uuid(text, uuid)) return kUnlimited;
    CUdevice ordinal = ordinal_of(uuid);
    return ordinal >= 0 ? memory_view(ordinal) : memory_view(uuid);
}

template <class Memory>
nvmlReturn_t memory_info(const Entry& entry, nvmlDevice_t device, Memory* memory) {
    auto real = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, Memory*)>(real_of(entry));
    if (!real) return kFunctionNotFound;
    nvmlReturn_t result = real(device, memory);
    if (result != 0 || !memory) return result;
    MemoryView view = view_of(device);
    if (view.limit == wire::kNoLimit) return result;
    memory->total = view.limit;
    memory->used = view.used < view.limit ? view.used : view.limit;
    memory->free = memory->total - memory->used;
    if constexpr (requires { memory->reserved; }) memory->reserved = 0;  // part of no group's limit
    return result;
}

}  // namespace

bool is_nvml_hook(std::string_view name) {
    return entry_of(name) != nullptr;
}

void* redirect_nvml(void* found, std::string_view name) {
    const Entry* entry = entry_of(name);
    if (!entry) return found;
    if (found == entry->hook) return real_of(*entry) ? found : nullptr;
    void* unknown = nullptr;
    found_real(*entry).compare_exchange_strong(unknown, found, std::memory_order_relaxed);
    return entry->hook;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
    return memory_info(*entry_of("nvmlDeviceGetMemoryInfo"), device, memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
    return memory_info(*entry_of("nvmlDeviceGetMemoryInfo_v2"), device, memory);
}

}  // extern "C"
