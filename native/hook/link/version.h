// The version of wire.h that this hook speaks. It is defined in a file of its own, so that tests can link hooks of
// other versions from the same objects.
#pragma once

#include "wire.h"

namespace gemlet::hook {

extern const uint16_t wire_version;

inline wire::Header header(wire::MessageType type, uint32_t device = 0, uint32_t epoch = 0) {
    return {wire::kMagic, wire_version, type, device, epoch};
}

}  // namespace gemlet::hook
