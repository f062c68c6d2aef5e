// The daemon's side of one group's memory on one device: hands out slots, clears them when their owner is gone, and
// publishes the limit. Clients reserve by themselves (native/hook/memory/ledger.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/shared_memory.hpp"
#include "wire.h"

namespace gemlet::server {

class Ledger {
  public:
    Ledger();

    std::optional<uint32_t> take_slot();  // nullopt: all wire::kLedgerSlots are taken
    // The owner is dead or detached: whatever it held is free again, and so is the lock if it died holding it.
    void give_slot(uint32_t slot);

    void set_limit(uint64_t bytes) { limits_->memory_limit.store(bytes); }
    void set_context_estimate(uint64_t bytes) { limits_->context_estimate.store(bytes); }
    // Bytes the driver holds for the slot's owner that no allocation call accounts for.
    void set_untracked(uint32_t slot, uint64_t bytes);

    uint64_t limit() const { return limits_->memory_limit.load(); }
    uint64_t used(uint32_t slot) const;  // as the client wrote it
    uint64_t untracked(uint32_t slot) const { return untracked_[slot]; }
    uint64_t used() const;  // by all, untracked included
    uint64_t untracked() const { return limits_->untracked.load(); }

    int limits_fd() const { return limits_.fd(); }
    int ledger_fd() const { return ledger_.fd(); }

  private:
    Shared<wire::GroupLimits> limits_;
    Shared<wire::GroupLedger> ledger_;
    std::vector<bool> taken_;
    std::vector<uint64_t> untracked_;
};

}  // namespace gemlet::server
