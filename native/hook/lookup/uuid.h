// Devices by their UUID: NVML counts every GPU of the machine, CUDA the visible ones in its own order.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// "GPU-6f36cb1a-7b5c-..." or "MIG-...": the digits are the CUuuid's bytes in order. `end` is behind the last of them.
bool parse_uuid(const char* text, CUuuid& uuid, const char** end = nullptr);

bool uuid_of(CUdevice ordinal, CUuuid& uuid);

}  // namespace gemlet::hook
