// Whose memory a request is for, by the location that it names.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// -1: no device's, or none in particular.
inline CUdevice device_at(const CUmemLocation& location) {
    switch (location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            return location.id;
        case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:  // a part of its memory
            return location.localized.deviceId;
        default:
            return -1;
    }
}

inline bool is_on_host(const CUmemLocation& location) {
    switch (location.type) {
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
            return true;
        default:
            return false;
    }
}

}  // namespace gemlet::hook
