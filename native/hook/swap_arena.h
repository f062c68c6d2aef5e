// Where chunks go on the host: a file of the daemon's, mapped once, sparse. What is touched of it is pinned a segment
// at a time and stays pinned, and a chunk keeps its place while it lives.
//
// A first touch and pinning take ten times as long as a copy (0.4 s per GiB by one thread, measured on an H200's
// host, against 0.02), so the mover does it ahead of need, once it is known how much may ever have to go.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "cuda_api.h"
#include "swap_pieces.h"

namespace gemlet::hook {

inline constexpr uint64_t kSegment = 64 << 20;

class Arena {
  public:
    Arena(void* memory, uint64_t bytes) : memory_(static_cast<char*>(memory)), pieces_(bytes), bytes_(bytes) {}

    // Offset of room for a chunk; empty: the arena is full.
    std::optional<uint64_t> take(uint64_t bytes) { return pieces_.take(bytes, kSegment); }
    void give(uint64_t offset) { pieces_.give(offset); }
    char* at(uint64_t offset) const { return memory_ + offset; }

    // Below: the mover alone, in a context, and without SwapSpace's `mutex`, since it takes long.
    bool pinned(uint64_t offset) const { return pinned_.contains(offset / kSegment); }
    void pin(uint64_t offset);  // the segment that the offset is in, if the driver lets us
    // The first offset below `bytes` that is not pinned. Room is given out from the beginning.
    std::optional<uint64_t> to_pin(uint64_t bytes) const;
    void context_gone() { pinned_.clear(); }  // pinning belongs to the context

  private:
    char* memory_;
    Pieces pieces_;
    uint64_t bytes_;
    std::set<uint64_t> pinned_;  // segments
};

}  // namespace gemlet::hook
