// Where chunks go on the host: a file of the daemon's, mapped once, sparse. What is touched of it is pinned a segment
// at a time (pinning costs 0.3 s per GiB, so what was pinned stays pinned), and a chunk keeps its place while it
// lives.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "cuda_api.h"
#include "swap_pieces.h"

namespace gemlet::hook {

inline constexpr uint64_t kSegment = 256 << 20;

class Arena {
  public:
    Arena(void* memory, uint64_t bytes) : memory_(static_cast<char*>(memory)), pieces_(bytes), bytes_(bytes) {}

    // Offset of room for a chunk, pinned if the driver lets us; empty: the arena is full.
    std::optional<uint64_t> take(uint64_t bytes);
    void give(uint64_t offset) { pieces_.give(offset); }
    char* at(uint64_t offset) const { return memory_ + offset; }
    void context_gone() { pinned_.clear(); }  // pinning belongs to the context

  private:
    char* memory_;
    Pieces pieces_;
    uint64_t bytes_;
    std::set<uint64_t> pinned_;  // segments
};

}  // namespace gemlet::hook
