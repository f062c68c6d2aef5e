#include "hook/submit/multiprocessors.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "hook/link/say.h"
#include "hook/lookup/driver.h"
#include "hook/lookup/uuid.h"

namespace gemlet::hook {

namespace {

// "GPU-...=132;GPU-...=114", null without any.
const char* told() {
    static const char* const text = [] {
        const char* set = std::getenv("GEMLET_MULTIPROCESSORS");
        return set && *set ? strdup(set) : nullptr;
    }();
    return text;
}

}  // namespace

int multiprocessors_of(CUdevice device) {
    CUuuid wanted;
    if (!told() || !uuid_of(device, wanted)) return 0;
    for (const char* entry = told(); entry; entry = std::strchr(entry, ';')) {
        entry += *entry == ';';
        CUuuid uuid;
        const char* end = nullptr;
        if (parse_uuid(entry, uuid, &end) && *end == '=' &&
            std::memcmp(uuid.bytes, wanted.bytes, sizeof uuid.bytes) == 0)
            return std::atoi(end + 1);
    }
    return 0;
}

CUresult explain_too_large(CUresult result) {
    if (result != CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE || !told()) [[likely]]
        return result;
    say_once(
        Topic::kMultiprocessors,
        "a cooperative launch is larger than this program's fraction of the multiprocessors\n"
        "  hint: GEMLET_MULTIPROCESSORS= (empty) before `gemlet run` tells the program the size of its fraction, "
        "but then some libraries compute wrong results (docs/mps.md)");
    return result;
}

}  // namespace gemlet::hook

using namespace gemlet::hook;

extern "C" {

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    const CUresult result = real::cuDeviceGetAttribute(value, attribute, device);
    if (result == CUDA_SUCCESS && attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        *value = std::max(*value, multiprocessors_of(device));
    return result;
}

}  // extern "C"
