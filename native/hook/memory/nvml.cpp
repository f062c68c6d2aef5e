// NVML's memory queries, which monitors and some frameworks ask instead of the driver: they show the group's limit,
// too.
#include <cstdint>
#include <cstring>

#include "hook/link/connection.h"
#include "hook/lookup/nvml_lookup.h"
#include "hook/lookup/uuid.h"
#include "hook/memory/context.h"
#include "hook/memory/ledger.h"
#include "wire.h"

namespace gemlet::hook {

namespace {

constexpr nvmlReturn_t kFunctionNotFound = 13;

// A process that belongs to no group sees the machine as it is, and never connects because of a monitor's question.
bool is_client() {
    return destination().socket[0] != 0;
}

CUdevice ordinal_of(const CUuuid& wanted) {
    if (!cuda_started()) return -1;
    CUuuid uuid;
    for (CUdevice ordinal = 0; uuid_of(ordinal, uuid); ++ordinal)
        if (std::memcmp(uuid.bytes, wanted.bytes, sizeof uuid.bytes) == 0) return ordinal;
    return -1;
}

MemoryView view_of(nvmlDevice_t device) {
    constexpr MemoryView kUnlimited{wire::kNoLimit, 0};
    using GetUuid = nvmlReturn_t (*)(nvmlDevice_t, char*, unsigned int);
    if (!is_client()) return kUnlimited;
    auto get_uuid = reinterpret_cast<GetUuid>(nvml_symbol("nvmlDeviceGetUUID"));
    char text[96];
    CUuuid uuid;
    if (!get_uuid || get_uuid(device, text, sizeof text) != 0 || !parse_uuid(text, uuid)) return kUnlimited;
    CUdevice ordinal = ordinal_of(uuid);
    return ordinal >= 0 ? memory_view(ordinal) : memory_view(uuid);
}

template <class Memory>
nvmlReturn_t memory_info(const char* name, nvmlDevice_t device, Memory* memory) {
    auto real = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, Memory*)>(real_nvml(name));
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

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
    return memory_info("nvmlDeviceGetMemoryInfo", device, memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
    return memory_info("nvmlDeviceGetMemoryInfo_v2", device, memory);
}

}  // extern "C"
