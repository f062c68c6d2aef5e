#include "server/ledger.hpp"

#include <sys/random.h>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "futex.h"

namespace gemlet::server {

namespace {

uint32_t new_number() {
    uint32_t number = 0;
    while (number == 0)
        if (getrandom(&number, sizeof number, 0) != sizeof number && errno != EINTR)
            throw std::system_error(errno, std::generic_category(), "getrandom");
    return number;
}

}  // namespace

Ledger::Ledger()
    : limits_("gemlet-limits", Access::kReadOnly),
      ledger_("gemlet-ledger", Access::kReadWrite),
      taken_(wire::kLedgerSlots),
      untracked_(wire::kLedgerSlots) {
    limits_->memory_limit = wire::kNoLimit;
    ledger_->number = new_number();
}

Ledger::Ledger(Descriptor ledger)
    : limits_("gemlet-limits", Access::kReadOnly),
      ledger_(std::move(ledger)),
      taken_(wire::kLedgerSlots),
      untracked_(wire::kLedgerSlots) {
    limits_->memory_limit = wire::kNoLimit;
    if (number() == 0) ledger_->number = new_number();
}

void Ledger::set_limits(const GroupSettings& settings) {
    limits_->memory_limit = settings.memory.value_or(wire::kNoLimit);
    limits_->limited = settings.memory || settings.resident || settings.spec.max < 1;
}

void Ledger::hold_slot(uint32_t slot, uint64_t untracked) {
    if (slot >= wire::kLedgerSlots || taken_[slot]) throw std::invalid_argument("a slot that cannot be taken");
    taken_[slot] = true;
    set_untracked(slot, untracked, 0);
    if (slot >= limits_->slot_count.load()) limits_->slot_count = slot + 1;
}

std::optional<uint32_t> Ledger::take_slot() {
    for (uint32_t slot = 0; slot < wire::kLedgerSlots; ++slot) {
        if (taken_[slot]) continue;
        taken_[slot] = true;
        ledger_->slots[slot].used = 0;
        if (slot >= limits_->slot_count.load()) limits_->slot_count = slot + 1;
        return slot;
    }
    return std::nullopt;
}

std::optional<Slot> Slot::take(std::shared_ptr<Ledger> ledger, const std::string& who, bool administrator) {
    auto place = FairPlace::in(ledger->slot_limit_, who, administrator);
    if (!place) return std::nullopt;
    const auto index = ledger->take_slot();
    if (!index) return std::nullopt;
    return Slot(std::move(ledger), *index, std::move(place));
}

Slot Slot::inherit(std::shared_ptr<Ledger> ledger, uint32_t index, const std::string& who, bool administrator,
                   uint64_t untracked) {
    ledger->hold_slot(index, untracked);
    auto place = FairPlace::in(ledger->slot_limit_, who, administrator);  // without one it is there all the same
    return Slot(std::move(ledger), index, std::move(place));
}

void Ledger::give_slot(uint32_t slot) {
    ledger_->slots[slot].used = 0;
    uint32_t owner = slot + 1;
    ledger_->lock.compare_exchange_strong(owner, 0);
    owner = slot + 1;
    if (ledger_->turn.compare_exchange_strong(owner, 0)) futex_wake_some(ledger_->turn);
    set_untracked(slot, 0, 0);
    taken_[slot] = false;
    uint32_t count = limits_->slot_count.load();
    while (count > 0 && !taken_[count - 1]) --count;
    limits_->slot_count = count;
}

void Ledger::set_untracked(uint32_t slot, uint64_t bytes, uint64_t now_ns) {
    if (bytes > untracked_[slot]) limits_->added_ns = now_ns;  // before it is there, so that nobody sees that alone
    limits_->untracked.fetch_add(bytes - untracked_[slot]);
    untracked_[slot] = bytes;
}

uint64_t Ledger::used(uint32_t slot) const {
    return ledger_->slots[slot].used.load();
}

uint64_t Ledger::used() const {
    uint64_t total = limits_->untracked.load();
    for (uint32_t slot = 0; slot < limits_->slot_count.load(); ++slot)
        if (taken_[slot]) total += used(slot);
    return total;
}

}  // namespace gemlet::server
