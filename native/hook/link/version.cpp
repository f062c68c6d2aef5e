#include "hook/link/version.h"

#ifndef GEMLET_WIRE_VERSION
#define GEMLET_WIRE_VERSION wire::kWireVersion
#endif

namespace gemlet::hook {

const uint16_t wire_version = GEMLET_WIRE_VERSION;

}  // namespace gemlet::hook
