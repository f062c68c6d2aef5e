// After a daemon was killed, its members still have its ledger, and this daemon has not. They take more there until
// they notice; so nobody takes more in the ledger of this one before one of them has closed that of before and has
// told what is in it: from then on no byte is in neither. It tells of members that are stopped, too, and of what they
// have reserved and not asked the driver for yet.
//
// Where none comes in time, all that live are stopped, or cannot come. What the driver says of them counts.
#include <algorithm>
#include <memory>

#include "server/server.hpp"

namespace gemlet::server {

namespace {

// Time is that in which this daemon serves: one that was stopped itself has heard nobody.
constexpr Nanoseconds kRound = 100'000'000;
constexpr size_t kMostTold = 16;  // ledgers, of one group on a device

// What the driver said of it beyond what was noted has stood for allocations that are now known.
void learn_used(Absent& absent, uint64_t bytes) {
    absent.slot.set_used(bytes);
    absent.slot.set_untracked(absent.untracked_before, 0);
}

void set_state(const LostLedger& lost, wire::LedgerState state) {
    const auto device = lost.device.lock();
    if (!device) return;
    if (const auto ledger = device->ledgers.find(lost.group); ledger != device->ledgers.end())
        ledger->second->set_state(state);
}

}  // namespace

LostLedger* Server::lost_ledger(const Device& device, const std::string& group) {
    const auto found = std::find_if(lost_.begin(), lost_.end(), [&](const LostLedger& lost) {
        return lost.group == group && lost.device.lock().get() == &device;
    });
    return found == lost_.end() ? nullptr : &*found;
}

// Also of one that nobody had noted before the daemon was killed.
bool Server::is_to_tell(const std::shared_ptr<Device>& device, const std::string& group, uint32_t number) {
    const auto ledger = device->ledgers.find(group);
    if (number == 0 || follows_ || !awaits_lost() || ledger == device->ledgers.end()) return false;
    if (ledger->second->number() == number) return false;  // it has lost the connection, and no more
    LostLedger* lost = lost_ledger(*device, group);
    if (!lost) {
        ledger->second->set_state(wire::LedgerState::kHeld);
        lost = &lost_.emplace_back(LostLedger{device, group, number, {}});
    }
    if (lost->told.contains(number) || lost->asked.size() >= kMostTold) return false;
    lost->asked.insert(number);
    return true;
}

// A member of the group may say what it likes: it may write as much into the ledger.
void Server::tells(const Device& device, const Client& client, const wire::Message& message) {
    LostLedger* lost = lost_ledger(device, client.group);
    const auto ledger = device.ledgers.find(client.group);
    const uint32_t number = message.header.epoch;
    if (!lost || ledger == device.ledgers.end() || !lost->asked.contains(number) || lost->told.contains(number))
        return;
    if (message.slot >= wire::kLedgerSlots) {
        lost->told.insert(number);
        if (number == lost->number) lost->untracked = message.value;
        count_untracked(*lost);
        return;
    }
    if (number == lost->number) {
        for (auto& [id, absent] : absent_) {
            if (absent.slot_before != message.slot || !lost->awaits(absent)) continue;
            learn_used(absent, message.value);
            return;
        }
        if (lost->known.contains(message.slot)) return;  // it has ended, or come
    }
    if (message.value == 0) return;
    const std::pair key(number, message.slot);
    auto known = lost->others.find(key);
    if (known == lost->others.end()) {
        auto slot = Slot::take(ledger->second, client.who, may_have_all(groups_.at(client.group), client));
        if (!slot) return;
        known = lost->others.emplace(key, std::move(*slot)).first;
    }
    known->second.set_used(message.value);
}

// `attach`: by itself, which a hook before this one does not say.
void Server::comes(Absent& absent, const wire::Message& attach) {
    if (absent.noted && attach.tail_ns > 0) learn_used(absent, attach.tail_ns);
}

void Server::has_come(const Device& device, const Attachment& a, const wire::Message& attach) {
    LostLedger* lost = lost_ledger(device, a.client->group);
    if (!lost || lost->number != attach.header.epoch) return;
    lost->untracked_came += a.slot.untracked();
    count_untracked(*lost);
}

// Contexts of those of which nobody had noted that they have any, until they come.
void Server::count_untracked(LostLedger& lost) {
    const auto device = lost.device.lock();
    if (!device) return;
    uint64_t counted = lost.untracked_came;
    for (const auto& [id, absent] : absent_)
        if (lost.awaits(absent)) counted += absent.slot.untracked();
    const uint64_t rest = lost.untracked - std::min(lost.untracked, counted);
    const std::pair key(lost.number, wire::kLedgerSlots);
    auto known = lost.others.find(key);
    if (known == lost.others.end()) {
        const auto ledger = device->ledgers.find(lost.group);
        if (rest == 0 || ledger == device->ledgers.end()) return;
        auto slot = Slot::take(ledger->second, "", true);
        if (!slot) return;
        known = lost.others.emplace(key, std::move(*slot)).first;
    }
    known->second.set_used(rest);
}

// The slot in which counts what was told of one whom nobody had noted.
std::optional<Slot> Server::claim_told(const Device& device, const std::string& group, const wire::Message& attach) {
    LostLedger* lost = lost_ledger(device, group);
    if (!lost || attach.client == 0) return std::nullopt;
    if (lost->number == attach.header.epoch)
        lost->known.insert(attach.client - 1);  // what is told of it later is old
    auto found = lost->others.extract({attach.header.epoch, attach.client - 1});
    if (!found) return std::nullopt;
    return std::move(found.mapped());
}

bool Server::awaits_lost() const {
    return rounds_ <= options_.lost_rounds;
}

void Server::settle_lost(Nanoseconds now) {
    if (!awaits_lost()) return;
    if (now >= next_round_) {
        next_round_ = now + kRound;
        ++rounds_;
    }
    for (const LostLedger& lost : lost_) {
        const bool all_came = lost.awaits_nobody() && lost.asked == lost.told;
        // What was told of others may be of some that have ended with the daemon: nobody is refused for them.
        if (lost.told.contains(lost.number) || all_came)
            set_state(lost, lost.others.empty() ? wire::LedgerState::kOpen : wire::LedgerState::kUnsettled);
    }
    if (awaits_lost()) return;
    for (LostLedger& lost : lost_) {
        lost.others.clear();  // before anybody who waits for that looks
        set_state(lost, wire::LedgerState::kOpen);
    }
    lost_.clear();
}

bool Server::knows_members() {
    std::lock_guard lock(mutex_);
    return lost_.empty();
}

void Server::govern() {
    std::lock_guard lock(mutex_);
    for (const auto& device : devices_)
        for (const auto& [group, ledger] : device->ledgers) ledger->set_state(wire::LedgerState::kOpen);
}

}  // namespace gemlet::server
