#include "addresses.hpp"

#include <algorithm>
#include <mutex>

namespace gemlet::sim {

Addresses& Addresses::get() {
    static auto* addresses = new Addresses;
    return *addresses;
}

void Addresses::add(Range range) {
    const std::lock_guard guard(mutex_);
    range.id = next_id_++;
    ranges_[range.base] = std::move(range);
}

std::optional<Range> Addresses::remove(uintptr_t base) {
    const std::lock_guard guard(mutex_);
    const auto found = ranges_.find(base);
    if (found == ranges_.end()) return std::nullopt;
    Range range = std::move(found->second);
    ranges_.erase(found);
    return range;
}

void Addresses::remove(uintptr_t base, uint64_t id) {
    const std::lock_guard guard(mutex_);
    const auto found = ranges_.find(base);
    if (found != ranges_.end() && found->second.id == id) ranges_.erase(found);
}

std::optional<Range> Addresses::find(uintptr_t address) const {
    const std::shared_lock guard(mutex_);
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return std::nullopt;
    const Range& range = std::prev(after)->second;
    if (address - range.base >= range.bytes) return std::nullopt;
    return range;
}

std::vector<Range> Addresses::remove_of(void* context) {
    const std::lock_guard guard(mutex_);
    std::vector<Range> removed;
    for (auto range = ranges_.begin(); range != ranges_.end();) {
        const bool mapped = range->second.place == Place::kMapped || range->second.place == Place::kPooled;
        if (range->second.context != context || mapped) {
            ++range;
            continue;
        }
        removed.push_back(std::move(range->second));
        range = ranges_.erase(range);
    }
    return removed;
}

void Addresses::set_accessible(uintptr_t base, bool accessible) {
    const std::lock_guard guard(mutex_);
    const auto found = ranges_.find(base);
    if (found != ranges_.end()) found->second.accessible = accessible;
}

void Addresses::set_populated(uintptr_t base, uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    const auto found = ranges_.find(base);
    if (found != ranges_.end()) found->second.populated = bytes;
}

uintptr_t Addresses::first_unmapped(uintptr_t address, uint64_t bytes) const {
    const std::shared_lock guard(mutex_);
    const uintptr_t end = address + bytes;
    while (address < end) {
        auto after = ranges_.upper_bound(address);
        if (after != ranges_.begin()) {
            const Range& range = std::prev(after)->second;
            if (address < range.base + range.bytes) {
                if (!range.accessible) return address;
                address = range.base + range.bytes;
                continue;
            }
        }
        auto reservation = reservations_.upper_bound(address);
        if (reservation != reservations_.begin()) {
            const auto& [base, length] = *std::prev(reservation);
            if (address < base + length) return address;
        }
        if (after == ranges_.end()) return 0;
        address = after->first;
    }
    return 0;
}

void Addresses::add_reservation(uintptr_t base, uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    reservations_[base] = bytes;
}

bool Addresses::remove_reservation(uintptr_t base, uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    const auto found = reservations_.find(base);
    if (found == reservations_.end() || found->second != bytes) return false;
    const auto inside = ranges_.lower_bound(base);
    if (inside != ranges_.end() && inside->first < base + bytes) return false;  // something is still mapped
    reservations_.erase(found);
    return true;
}

bool Addresses::reserved(uintptr_t address, uint64_t bytes) const {
    const auto [base, length] = reservation_of(address);
    return length != 0 && address + bytes <= base + length;
}

std::pair<uintptr_t, uint64_t> Addresses::reservation_of(uintptr_t address) const {
    const std::shared_lock guard(mutex_);
    auto after = reservations_.upper_bound(address);
    if (after == reservations_.begin()) return {};
    const auto& [base, length] = *std::prev(after);
    if (address - base >= length) return {};
    return {base, length};
}

}  // namespace gemlet::sim
