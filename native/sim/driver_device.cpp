// Devices and their properties.
#include <cstdio>
#include <cstring>

#include "capture.hpp"
#include "device_identity.hpp"
#include "handles.hpp"
#include "mps_session.hpp"
#include "visible_devices.hpp"

#define GEMLET_SIM_ATTRIBUTE(NAME, NUMBER) static_assert(CU_DEVICE_ATTRIBUTE_##NAME == NUMBER);
#include "device_attributes.def"
#undef GEMLET_SIM_ATTRIBUTE

using namespace gemlet::sim;

namespace {

CUresult uuid(const char* name, CUuuid* out, CUdevice device) {
    return api(name, [&] {
        check(out != nullptr);
        device_uuid(device_of(device), reinterpret_cast<unsigned char*>(out->bytes));
    });
}

CUresult total_memory(const char* name, size_t* bytes, CUdevice device) {
    return api(name, [&] {
        check(bytes != nullptr);
        *bytes = device_of(device).profile().capacity;
    });
}

int attribute(const Device& device, CUdevice_attribute which) {
    switch (which) {
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
            return static_cast<int>(pci_bus(device));
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            return mps_share(device).multiprocessors;
        case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
            return mps_client() ? 1 : 0;
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
            return 0;
        case CU_DEVICE_ATTRIBUTE_NUMA_ID:
            return -1;
        default:
            break;
    }
    // Newer headers know attributes that this driver does not.
    check(which > 0 && static_cast<size_t>(which) < kAttributes && which < 149);
    return device.profile().attributes[which];
}

}  // namespace

extern "C" {

CUresult cuDeviceGetCount(int* count) {
    return api(__func__, [&] {
        check(count != nullptr);
        *count = static_cast<int>(visible_devices().size());
    });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return api(__func__, [&] {
        check(device != nullptr);
        device_of(ordinal);
        *device = ordinal;
    });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    return api(__func__, [&] {
        check(name != nullptr && length > 0);
        std::snprintf(name, static_cast<size_t>(length), "%s", device_of(device).profile().name);
    });
}

CUresult cuDeviceGetUuid(CUuuid* out, CUdevice device) {
    return uuid(__func__, out, device);
}
CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
    return uuid(__func__, out, device);
}

CUresult cuDeviceGetLuid(char*, unsigned*, CUdevice) {  // Windows only
    return api(__func__, [] { return CUDA_ERROR_NOT_SUPPORTED; });
}

CUresult cuDeviceTotalMem(unsigned* bytes, CUdevice device) {
    return api(__func__, [&] {
        check(bytes != nullptr);
        const uint64_t capacity = device_of(device).profile().capacity;
        *bytes = capacity > UINT32_MAX ? UINT32_MAX : static_cast<unsigned>(capacity);
    });
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return total_memory(__func__, bytes, device);
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    return api(__func__, [&] {
        check(value != nullptr);
        *value = attribute(device_of(device), which);
    });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    return api(__func__, [&] {
        check(major != nullptr && minor != nullptr);
        *major = attribute(device_of(device), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        *minor = attribute(device_of(device), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    });
}

CUresult cuDeviceGetProperties(CUdevprop* out, CUdevice device) {
    return api(__func__, [&] {
        check(out != nullptr);
        const int32_t* a = device_of(device).profile().attributes;
        *out = CUdevprop{};
        out->maxThreadsPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
        for (int i = 0; i < 3; ++i) {
            out->maxThreadsDim[i] = a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i];
            out->maxGridSize[i] = a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i];
        }
        out->sharedMemPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
        out->totalConstantMemory = a[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
        out->SIMDWidth = a[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
        out->memPitch = a[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
        out->regsPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
        out->clockRate = a[CU_DEVICE_ATTRIBUTE_CLOCK_RATE];
        out->textureAlign = a[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
    });
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    return api(__func__, [&] {
        check(text != nullptr && length > 0);
        std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", pci_bus(device_of(device)));
    });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    return api(__func__, [&] {
        check(device != nullptr && text != nullptr);
        const int found = device_with_pci(text), shown = found < 0 ? -1 : ordinal_of(static_cast<uint32_t>(found));
        check(shown >= 0, CUDA_ERROR_INVALID_DEVICE);
        *device = shown;
    });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    return api(__func__, [&] {
        check(can != nullptr);
        *can = &device_of(device) != &device_of(peer) ? 1 : 0;
    });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute which, CUdevice from, CUdevice to) {
    return api(__func__, [&] {
        check(value != nullptr && &device_of(from) != &device_of(to));
        *value = which == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
    });
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format, unsigned, CUdevice device) {
    return api(__func__, [&] {
        check(width != nullptr);
        *width =
            static_cast<size_t>(attribute(device_of(device), CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH));
    });
}

CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType type, CUdevice device) {
    return api(__func__, [&] {
        check(supported != nullptr);
        device_of(device);
        *supported = type == CU_EXEC_AFFINITY_TYPE_SM_COUNT && mps_client() ? 1 : 0;
    });
}

}  // extern "C"
