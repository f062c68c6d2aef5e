// What every address of this process that CUDA knows about is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "backing.hpp"

namespace gemlet::sim {

enum class Place : uint8_t {
    kDevice,      // memory of a device
    kPooled,      // ... from a stream-ordered pool
    kHost,        // pinned host memory we allocated
    kRegistered,  // host memory of the program, registered
    kManaged,
    kMapped,    // a chunk mapped into a reserved range
    kImported,  // another process's device memory
};

struct Range {
    uintptr_t base = 0;
    uint64_t bytes = 0;
    Place place = Place::kDevice;
    int device = 0;
    void* context = nullptr;
    uint64_t id = 0;        // unique in this process
    unsigned flags = 0;     // of host memory; of kMapped: how it may be exported
    void* owner = nullptr;  // the pool, or the handle that is mapped
    std::shared_ptr<Backing> backing;
    uint64_t backing_offset = 0;
    bool accessible = true;
    uint64_t populated = 0;  // of kManaged: bytes on the device

    bool on_device() const { return place != Place::kHost && place != Place::kRegistered; }
};

class Addresses {
  public:
    static Addresses& get();

    void add(Range range);
    std::optional<Range> remove(uintptr_t base);
    // Nothing if another range begins there by now.
    void remove(uintptr_t base, uint64_t id);
    std::optional<Range> find(uintptr_t address) const;
    // Takes out all that goes away with a context.
    std::vector<Range> remove_of(void* context);
    void set_accessible(uintptr_t base, bool accessible);
    void set_populated(uintptr_t base, uint64_t bytes);

    // The first byte of [address, address + bytes) that is device address space without accessible memory; 0 if none.
    // Host memory that CUDA does not know is the program's business.
    uintptr_t first_unmapped(uintptr_t address, uint64_t bytes) const;

    void add_reservation(uintptr_t base, uint64_t bytes);
    bool remove_reservation(uintptr_t base, uint64_t bytes);
    bool reserved(uintptr_t address, uint64_t bytes) const;
    // Start and bytes of the reservation an address is in; nulls: it is in none.
    std::pair<uintptr_t, uint64_t> reservation_of(uintptr_t address) const;

  private:
    mutable std::shared_mutex mutex_;
    std::map<uintptr_t, Range> ranges_;
    std::map<uintptr_t, uint64_t> reservations_;
    uint64_t next_id_ = 1;
};

}  // namespace gemlet::sim
