// The daemon's side of one group's memory on one device: hands out slots, clears them when their owner is gone, and
// publishes the limit. Clients reserve by themselves (native/hook/memory/ledger.cpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "group_fields.h"
#include "server/descriptor.hpp"
#include "server/fair_limit.hpp"
#include "server/shared_memory.hpp"
#include "wire.h"

namespace gemlet::server {

class Ledger {
  public:
    Ledger();
    // That of the daemon before, which members have mapped; what it says of each must come by Slot::inherit(). Throws
    // std::system_error and std::invalid_argument.
    explicit Ledger(Descriptor ledger);

    void set_limits(const GroupSettings& settings);
    // What its members reserve for one more context: the least that any of them knows. 0: nothing new.
    void learn_context(uint64_t bytes) {
        const uint64_t known = context_estimate();
        if (bytes > 0 && (known == 0 || bytes < known)) limits_->context_estimate.store(bytes);
    }
    uint64_t context_estimate() const { return limits_->context_estimate.load(); }

    uint64_t limit() const { return limits_->memory_limit.load(); }
    uint64_t used() const;  // by all, untracked included
    uint64_t untracked() const { return limits_->untracked.load(); }

    // Another one takes its place, with what the slots have after this. Members that still count here find no room,
    // and see why before they refuse anything; one that has found room already loses the lock, and with it what it
    // claims.
    void close() {
        limits_->untracked = limit();
        ledger_->lock = 0;
        std::atomic_thread_fence(std::memory_order_seq_cst);  // with that of the hook's LedgerLock
    }

    // To a successor: members that are not there yet look at every slot, for it may have given any.
    void pass_on() {
        limits_->slot_count = wire::kLedgerSlots;
        set_state(wire::LedgerState::kHeld);
    }
    void set_state(wire::LedgerState state) { limits_->held = uint32_t(state); }
    wire::LedgerState state() const { return wire::LedgerState(limits_->held.load()); }
    uint32_t number() const { return ledger_->number.load(); }

    const FairLimit& slot_limit() const { return slot_limit_; }

    int limits_fd() const { return limits_.fd(); }
    int ledger_fd() const { return ledger_.fd(); }

  private:
    friend class Slot;
    void hold_slot(uint32_t slot, uint64_t untracked);  // that is taken; throws std::invalid_argument
    void set_used(uint32_t slot, uint64_t bytes) { ledger_->slots[slot].used = bytes; }
    std::optional<uint32_t> take_slot();  // nullopt: all wire::kLedgerSlots are taken
    void give_slot(uint32_t slot);
    void set_untracked(uint32_t slot, uint64_t bytes, uint64_t now_ns);
    uint64_t used(uint32_t slot) const;

    Shared<wire::GroupLimits> limits_;
    Shared<wire::GroupLedger> ledger_;
    std::vector<bool> taken_;
    std::vector<uint64_t> untracked_;
    FairLimit slot_limit_{wire::kLedgerSlots};
};

// A client's slot in a ledger, which it keeps alive: groups and devices may be forgotten before the client is gone.
// Destroyed when its owner is dead or detached; whatever that held is free again then, and so is the lock if it died
// holding it.
class Slot {
  public:
    Slot() = default;  // none
    // nullopt: `who` has had as many of the wire::kLedgerSlots as there can be; see FairLimit.
    static std::optional<Slot> take(std::shared_ptr<Ledger> ledger, const std::string& who, bool administrator);
    // The one that its owner had under the daemon before, as it is. Throws std::invalid_argument.
    static Slot inherit(std::shared_ptr<Ledger> ledger, uint32_t index, const std::string& who, bool administrator,
                        uint64_t untracked);
    ~Slot() {
        if (ledger_) ledger_->give_slot(index_);
    }
    Slot(Slot&&) noexcept = default;
    Slot& operator=(Slot&& other) noexcept {
        std::swap(ledger_, other.ledger_);
        std::swap(index_, other.index_);
        std::swap(place_, other.place_);
        return *this;
    }

    uint32_t index() const { return index_; }
    const Ledger& ledger() const { return *ledger_; }
    uint64_t used() const { return ledger_->used(index_); }  // as the client wrote it
    // Bytes the driver holds for the owner that no allocation call accounts for.
    uint64_t untracked() const { return ledger_->untracked_[index_]; }
    void set_untracked(uint64_t bytes, uint64_t now_ns) { ledger_->set_untracked(index_, bytes, now_ns); }
    // In the place of an owner that cannot write it yet.
    void set_used(uint64_t bytes) { ledger_->set_used(index_, bytes); }
    // What is there stays: the daemon ends, and its clients live on.
    void leave() {
        place_ = FairPlace();
        ledger_.reset();
    }

  private:
    Slot(std::shared_ptr<Ledger> ledger, uint32_t index, FairPlace place)
        : ledger_(std::move(ledger)), index_(index), place_(std::move(place)) {}

    std::shared_ptr<Ledger> ledger_;
    uint32_t index_ = 0;
    FairPlace place_;  // in the ledger
};

}  // namespace gemlet::server
