#include "heap.hpp"

#include <algorithm>

namespace gemlet::sim {
namespace {
constexpr uint64_t kAlignment = 512;
uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}
}  // namespace

Heap::~Heap() {
    while (!slabs_.empty()) drop(slabs_.begin());
}

Heap::Piece Heap::take_from(uintptr_t base, Slab& slab, uint64_t bytes) {
    for (auto hole = slab.holes.begin(); hole != slab.holes.end(); ++hole) {
        if (hole->second < bytes) continue;
        const uintptr_t address = hole->first;
        const uint64_t rest = hole->second - bytes;
        slab.holes.erase(hole);
        if (rest > 0) slab.holes[address + bytes] = rest;
        slab.used += bytes;
        used_ += bytes;
        taken_[address] = bytes;
        return {address, slab.backing, address - base};
    }
    return {};
}

Heap::Piece Heap::take(uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    if (bytes >= uint64_t{1} << 56) return {};  // rounding up would wrap around
    bytes = round_up(std::max<uint64_t>(bytes, 1), kAlignment);
    const bool big = bytes >= big_;
    if (!big || keeps_) {
        for (auto& [base, slab] : slabs_) {
            if (!keeps_ && slab.bytes != slab_bytes_) continue;
            if (Piece piece = take_from(base, slab, bytes); piece.address != 0) return piece;
        }
    }
    const uint64_t size = std::max(round_up(bytes, device_.profile().granularity), big ? 0 : slab_bytes_);
    if (!device_.reserve(size)) return {};
    auto backing = Backing::in_arena(size);
    const uintptr_t base = backing ? reserve_addresses(0, size, device_.profile().granularity) : 0;
    if (base == 0 || backing->map(base, 0, size, true) == 0) {
        if (base != 0) forget_addresses(base, size);
        device_.release(size);
        return {};
    }
    reserved_ += size;
    // A big allocation owns its granules to the last byte.
    Slab& slab = slabs_[base] = Slab{backing, size, 0, {{base, size}}};
    return take_from(base, slab, big && !keeps_ ? size : bytes);
}

bool Heap::give(uintptr_t address) {
    const std::lock_guard guard(mutex_);
    const auto taken = taken_.find(address);
    if (taken == taken_.end()) return false;
    uint64_t bytes = taken->second;
    taken_.erase(taken);
    const auto found = std::prev(slabs_.upper_bound(address));
    Slab& slab = found->second;
    slab.used -= bytes;
    used_ -= bytes;
    auto next = slab.holes.lower_bound(address);
    if (next != slab.holes.end() && address + bytes == next->first) {
        bytes += next->second;
        next = slab.holes.erase(next);
    }
    if (next != slab.holes.begin() && std::prev(next)->first + std::prev(next)->second == address)
        std::prev(next)->second += bytes;
    else
        slab.holes[address] = bytes;
    if (slab.used == 0 && !keeps_) drop(found);
    return true;
}

void Heap::trim(uint64_t keep) {
    const std::lock_guard guard(mutex_);
    for (auto slab = slabs_.begin(); slab != slabs_.end() && reserved_ > keep;) {
        const auto next = std::next(slab);
        if (slab->second.used == 0) drop(slab);
        slab = next;
    }
}

void Heap::drop(std::map<uintptr_t, Slab>::iterator slab) {
    const uint64_t bytes = slab->second.bytes;
    forget_addresses(slab->first, bytes);
    slabs_.erase(slab);
    reserved_ -= bytes;
    device_.release(bytes);
}

uint64_t Heap::reserved() const {
    const std::lock_guard guard(mutex_);
    return reserved_;
}

uint64_t Heap::used() const {
    const std::lock_guard guard(mutex_);
    return used_;
}

}  // namespace gemlet::sim
