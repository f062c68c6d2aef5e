// Where chunks go on the host: addresses of the program's own, which take memory a segment at a time, in huge pages
// where the system has them. What was taken is pinned and stays, and a chunk keeps its place while it lives.
//
// On an H200's host (a virtual machine) a first touch of small pages took 0.75 s per GiB by one thread and pinning
// them another 0.18, against 0.02 for a copy. So the mover does both ahead of need, once it is known how much may
// have to go.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>

#include "cuda_api.h"
#include "swap_pieces.h"

namespace gemlet::hook {

inline constexpr uint64_t kSegment = 64 << 20;

class Arena {
  public:
    explicit Arena(uint64_t bytes);  // for so many; reserves addresses only
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    explicit operator bool() const { return memory_ != nullptr; }

    // Offset of room for a chunk; empty: the arena is full.
    std::optional<uint64_t> take(uint64_t bytes) { return pieces_.take(bytes, kSegment); }
    void give(uint64_t offset) { pieces_.give(offset); }
    char* at(uint64_t offset) const { return memory_ + offset; }
    uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }

    // Below: the mover alone, in a context, and without SwapSpace's `mutex`, since it takes long.
    bool pinned(uint64_t offset) const { return pinned_.contains(offset / kSegment); }
    // The segment that the offset is in. False: the system has no memory for it.
    bool pin(uint64_t offset);
    // The first offset below `bytes` that is not pinned. Room is given out from the beginning.
    std::optional<uint64_t> to_pin(uint64_t bytes) const;
    void context_gone();  // pinning belongs to the context

  private:
    uint64_t bytes_;
    void* reserved_ = nullptr;
    char* memory_ = nullptr;
    Pieces pieces_;
    std::set<uint64_t> pinned_;  // segments
    std::atomic<uint64_t> pinned_bytes_{0};
};

}  // namespace gemlet::hook
