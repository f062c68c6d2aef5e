// NVML of the simulated machine: the library itself and the system.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "nvml_frame.hpp"

namespace gemlet::sim {
std::atomic<int> nvml_users{0};
}

using namespace gemlet::sim;

extern "C" {

nvmlReturn_t nvmlInitWithFlags(unsigned) {
    try {
        devices();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gemlet-sim: no simulated machine: %s\n", error.what());
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    ++nvml_users;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}
nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void) {
    return nvml([]() -> nvmlReturn_t {
        --nvml_users;
        return NVML_SUCCESS;
    });
}

const char* nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
        case NVML_SUCCESS:
            return "Success";
        case NVML_ERROR_UNINITIALIZED:
            return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT:
            return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED:
            return "Not Supported";
        case NVML_ERROR_NOT_FOUND:
            return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE:
            return "Insufficient Size";
        case NVML_ERROR_DRIVER_NOT_LOADED:
            return "Driver Not Loaded";
        case NVML_ERROR_GPU_IS_LOST:
            return "GPU is lost";
        case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
            return "Argument Version Mismatch";
        default:
            return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned length) {
    return nvml([&] { return nvml_text(text, length, "580.159.04"); });
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char* text, unsigned length) {
    return nvml([&] { return nvml_text(text, length, "13.580.159.04"); });
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
    return nvml([&] { return nvml_value(version, 13000); });
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
    return nvml([&] { return nvml_value(version, 13000); });
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char* text, unsigned length) {
    return nvml([&]() -> nvmlReturn_t {
        std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
        if (!file) return NVML_ERROR_NOT_FOUND;
        std::string command(std::istreambuf_iterator<char>(file), {});
        command.resize(std::min(command.find('\0'), command.size()));
        if (text != nullptr && length > 0 && command.size() >= length) command.resize(length - 1);
        return nvml_text(text, length, command.c_str());
    });
}

nvmlReturn_t nvmlDeviceGetCount(unsigned* count) {
    return nvml([&] { return nvml_value(count, static_cast<unsigned>(devices().size())); });
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
    return nvmlDeviceGetCount(count);
}

}  // extern "C"
