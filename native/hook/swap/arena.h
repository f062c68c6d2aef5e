// Where chunks go on the host: addresses of the program's own, which take memory a segment at a time, in huge pages
// where the system has them. What was taken is pinned, and stays as long as so much may have to go; a chunk keeps its
// place while it lives or until the segment is given back.
//
// On an H200's host (a virtual machine) a first touch of small pages took 0.75 s per GiB by one thread and pinning
// them another 0.18, against 0.02 for a copy. So the mover does both ahead of need, once it knows how much memory
// may have to move.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>

#include "hook/lookup/cuda_api.h"
#include "hook/swap/pieces.h"

namespace gemlet::hook {

inline constexpr uint64_t kSegment = 64 << 20;

class Arena {
  public:
    explicit Arena(uint64_t bytes);  // of addresses; they cost nothing
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    explicit operator bool() const { return memory_ != nullptr; }

    // With SwapSpace's `mutex`. Offset of room for a chunk; empty: the arena is full.
    std::optional<uint64_t> take(uint64_t bytes) { return pieces_.take(bytes, kSegment); }
    void give(uint64_t offset) { pieces_.give(offset); }
    char* at(uint64_t offset) const { return memory_ + offset; }
    // Bytes of the host's memory that it has, pinned unless the driver refused.
    uint64_t taken_bytes() const { return taken_bytes_.load(std::memory_order_relaxed); }

    // Below: the mover alone, in a context, and without `mutex`, since it takes long.
    bool pinned(uint64_t offset) const { return pinned_.contains(offset / kSegment); }
    // The segment that the offset is in. CUDA_ERROR_OUT_OF_MEMORY: the system has no memory for it.
    // CUDA_ERROR_DEINITIALIZED: the process ends.
    CUresult pin(uint64_t offset);
    // The first offset below `bytes` that is not pinned. Room is given out from the beginning.
    std::optional<uint64_t> to_pin(uint64_t bytes) const;
    // Where the last segment begins that has memory; empty: none has, at or behind `bytes`.
    std::optional<uint64_t> last_taken(uint64_t bytes) const;
    // Gives the memory of a segment, in which no chunk has a place, back to the system. False: the driver keeps it.
    bool release(uint64_t offset);
    void context_goes(bool alive);  // pinning belongs to the context

  private:
    uint64_t bytes_of(uint64_t segment) const;

    uint64_t bytes_;
    void* reserved_ = nullptr;
    char* memory_ = nullptr;
    Pieces pieces_;
    std::set<uint64_t> taken_, pinned_;  // segments; what is pinned is taken
    std::atomic<uint64_t> taken_bytes_{0};
};

}  // namespace gemlet::hook
