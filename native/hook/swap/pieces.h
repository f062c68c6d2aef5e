// Offsets in a piece of something, first fit: small allocations in a slab, chunks in the host arena. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace gemlet::hook {

class Pieces {
  public:
    explicit Pieces(uint64_t bytes) { holes_[0] = bytes; }

    // No piece crosses a multiple of `within` (0: anything goes).
    std::optional<uint64_t> take(uint64_t bytes, uint64_t within = 0) {
        for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
            uint64_t at = hole->first;
            if (within && at / within != (at + bytes - 1) / within) at = (at / within + 1) * within;
            const uint64_t end = hole->first + hole->second;
            if (at + bytes > end) continue;
            const uint64_t begin = hole->first;
            holes_.erase(hole);
            if (at > begin) holes_[begin] = at - begin;
            if (end > at + bytes) holes_[at + bytes] = end - at - bytes;
            taken_[at] = bytes;
            return at;
        }
        return std::nullopt;
    }

    // False: no piece begins there.
    bool give(uint64_t at) {
        const auto taken = taken_.find(at);
        if (taken == taken_.end()) return false;
        uint64_t bytes = taken->second;
        taken_.erase(taken);
        auto next = holes_.lower_bound(at);
        if (next != holes_.end() && at + bytes == next->first) {
            bytes += next->second;
            next = holes_.erase(next);
        }
        if (next != holes_.begin()) {
            if (auto before = std::prev(next); before->first + before->second == at) {
                before->second += bytes;
                return true;
            }
        }
        holes_[at] = bytes;
        return true;
    }

    // The piece an offset is in: where it begins and its bytes.
    std::optional<std::pair<uint64_t, uint64_t>> find(uint64_t offset) const {
        auto next = taken_.upper_bound(offset);
        if (next == taken_.begin()) return std::nullopt;
        const auto& [at, bytes] = *std::prev(next);
        if (offset - at >= bytes) return std::nullopt;
        return std::pair{at, bytes};
    }
    bool empty() const { return taken_.empty(); }

  private:
    std::map<uint64_t, uint64_t> holes_, taken_;  // offset -> bytes
};

}  // namespace gemlet::hook
