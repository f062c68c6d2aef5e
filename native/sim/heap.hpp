// Device memory by the byte. The device hands out granules (2 MiB); small allocations share one, as on the card.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "backing.hpp"
#include "device.hpp"

namespace gemlet::sim {

class Heap {
  public:
    // Allocations from `big` bytes up get granules of their own; smaller ones share slabs of `slab_bytes`.
    // A heap that keeps holds on to empty slabs until trim().
    Heap(Device& device, uint64_t slab_bytes, uint64_t big, bool keeps)
        : device_(device), slab_bytes_(slab_bytes), big_(big), keeps_(keeps) {}
    ~Heap();
    Heap(const Heap&) = delete;
    Heap& operator=(const Heap&) = delete;

    struct Piece {
        uintptr_t address = 0;  // 0: the device is full
        std::shared_ptr<Backing> backing;
        uint64_t backing_offset = 0;
    };
    Piece take(uint64_t bytes);
    bool give(uintptr_t address);
    void trim(uint64_t keep);

    uint64_t reserved() const;
    uint64_t used() const;

  private:
    struct Slab {
        std::shared_ptr<Backing> backing;
        uint64_t bytes;
        uint64_t used;
        std::map<uintptr_t, uint64_t> holes;  // address -> bytes
    };
    Piece take_from(uintptr_t base, Slab& slab, uint64_t bytes);
    void drop(std::map<uintptr_t, Slab>::iterator slab);

    Device& device_;
    const uint64_t slab_bytes_, big_;
    const bool keeps_;
    mutable std::mutex mutex_;
    std::map<uintptr_t, Slab> slabs_;
    std::map<uintptr_t, uint64_t> taken_;  // address -> rounded bytes
    uint64_t reserved_ = 0, used_ = 0;
};

}  // namespace gemlet::sim
