#include "hook/lookup/uuid.h"

#include <cstring>

#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

namespace {

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

}  // namespace

bool parse_uuid(const char* text, CUuuid& uuid, const char** end) {
    const char* c = std::strchr(text, '-');
    int digits = 0;
    unsigned char bytes[16] = {};
    for (; c && (*c == '-' || hex_digit(*c) >= 0); ++c) {
        const int digit = hex_digit(*c);
        if (digit < 0) continue;
        if (digits == 32) return false;
        bytes[digits / 2] = static_cast<unsigned char>(bytes[digits / 2] << 4 | digit);
        ++digits;
    }
    std::memcpy(uuid.bytes, bytes, sizeof bytes);
    if (end) *end = c;
    return digits == 32;
}

bool uuid_of(CUdevice ordinal, CUuuid& uuid) {
    const auto get = own().cuDeviceGetUuid_v2 ? own().cuDeviceGetUuid_v2 : own().cuDeviceGetUuid;
    return get && get(&uuid, ordinal) == CUDA_SUCCESS;
}

}  // namespace gemlet::hook
