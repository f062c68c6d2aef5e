#include "swap_arena.h"

#include <algorithm>

#include "own_calls.h"

namespace gemlet::hook {

std::optional<uint64_t> Arena::take(uint64_t bytes) {
    const auto offset = pieces_.take(bytes, kSegment);
    if (!offset) return std::nullopt;
    const uint64_t segment = *offset / kSegment;
    if (pinned_.insert(segment).second) {
        const uint64_t begin = segment * kSegment;
        // Memory that cannot be pinned is copied through the driver's own buffers: slower, and just as right.
        own().cuMemHostRegister_v2(at(begin), std::min(kSegment, bytes_ - begin), CU_MEMHOSTREGISTER_PORTABLE);
    }
    return offset;
}

}  // namespace gemlet::hook
