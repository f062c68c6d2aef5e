// Devices and groups: made, changed while clients run, and forgotten.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "server/server.hpp"

namespace gemlet::server {

void Server::add_device(const Uuid& uuid, int index, const std::string& policy, uint64_t context_estimate) {
    std::lock_guard lock(mutex_);
    Device& device = *device_for(uuid, index);
    device.index = index;
    device.measured = true;
    device.made_by_client = false;
    for (const auto& [name, id] : device.groups)
        device.arbiter->set_group(spec_on(device, groups_.at(name)), clock());
    device.named = FairPlace();
    if (!policy.empty() && policy != device.policy) {
        if (!device.attachments.empty()) throw std::invalid_argument("the policy of a device in use cannot change");
        gangs_.remove(*device.arbiter);
        device.arbiter = std::make_unique<Arbiter>(policy, options_.arbiter);
        gangs_.add(*device.arbiter);
        device.policy = policy;
        device.groups.clear();
    }
    device.contexts.learn("", true, false, context_estimate);
    for (auto& [name, ledger] : device.ledgers) ledger->learn_context(context_estimate);
}

const std::shared_ptr<Device>& Server::device_for(const Uuid& uuid, int index) {
    for (auto& device : devices_)
        if (device->uuid == uuid) return device;
    auto device = std::make_shared<Device>();
    device->uuid = uuid;
    device->index = index;
    device->policy = options_.policy;
    device->arbiter = std::make_unique<Arbiter>(options_.policy, options_.arbiter);
    device->residency = Residency(options_.residency);
    gangs_.add(*device->arbiter);
    devices_.push_back(std::move(device));
    return devices_.back();
}

void Server::forget_unused_devices() {
    std::erase_if(devices_, [&](const auto& device) {
        const bool unused = device->made_by_client && device->attachments.empty() &&
                            std::none_of(absent_.begin(), absent_.end(),
                                         [&](const auto& entry) { return entry.second.device.lock() == device; });
        if (unused) gangs_.remove(*device->arbiter);
        return unused;
    });
}

void Server::validate(const GroupSettings& settings) {
    const GroupSpec& s = settings.spec;
    auto fail = [&](const std::string& what) { throw std::invalid_argument("group '" + s.name + "': " + what); };
    if (s.name.empty() || s.name.size() >= wire::kGroupNameBytes) fail("a name has 1 to 255 bytes");
    if (s.name.find('\0') != std::string::npos) fail("a name has no NUL");
    if (!(s.min >= 0 && s.min <= 1)) fail("min must be between 0 and 1");
    if (!(s.max >= 0 && s.max <= 1)) fail("max must be between 0 and 1");
    if (s.min > s.max) fail("min must not be above max");
    if (!(s.weight > 0) || !std::isfinite(s.weight)) fail("weight must be above 0");
    if (!(s.sm > 0 && s.sm <= 1)) fail("sm must be above 0 and at most 1");
}

// Elsewhere than on the device where it was reserved, a minimum would break what others were promised there.
GroupSpec Server::spec_on(const Device& device, const Group& group) {
    GroupSpec spec = group.settings.spec;
    if (group.device && *group.device != device.index) spec.min = 0;
    return spec;
}

void Server::set_group(const GroupSettings& settings, std::optional<int> on) {
    validate(settings);
    std::lock_guard lock(mutex_);
    Group& group = groups_[settings.spec.name];
    group.settings = settings;
    group.device = on;
    group.made_by_client = false;
    Nanoseconds now = clock();
    for (auto& device : devices_) {
        if (auto known = device->groups.find(settings.spec.name); known != device->groups.end()) {
            device->arbiter->set_group(spec_on(*device, group), now);
            apply(*device, now);
        }
        if (auto ledger = device->ledgers.find(settings.spec.name); ledger != device->ledgers.end())
            ledger->second->set_limits(settings);
        set_resident(*device, group, now);
    }
    expel(group, now);
    wake();
}

std::optional<uid_t> Server::maker(const std::string& name) {
    std::lock_guard lock(mutex_);
    auto found = groups_.find(name);
    if (found == groups_.end() || !found->second.made_by_client) return std::nullopt;
    return found->second.maker;
}

// Every event is looked at for all groups, so nobody may have a thousand of them.
void Server::set_accounts(std::vector<UidRange> ranges) {
    std::lock_guard lock(mutex_);
    accounts_ = Accounts(std::move(ranges));
}

bool Server::has_too_many_groups(uid_t user) const {
    constexpr std::ptrdiff_t kMost = 256;  // as of the groups that daemon/groups.py makes
    const auto is_theirs = [&, account = accounts_.of(user)](const auto& entry) {
        return entry.second.maker && accounts_.of(*entry.second.maker) == account;
    };
    return user != 0 && std::count_if(groups_.begin(), groups_.end(), is_theirs) >= kMost;
}

bool Server::may_join(const Group& group, const Client& client) {
    const auto& users = group.settings.users;
    return !users || client.fixed || client.uid == 0 ||
           std::find(users->begin(), users->end(), client.uid) != users->end();
}

// Of the group's slots: where nobody else may be in it, nobody is kept out of it.
bool Server::may_have_all(const Group& group, const Client& client) {
    const auto& users = group.settings.users;
    return client.administrator || client.fixed || (users && users->size() <= 1);
}

void Server::tell_context_size(Device& device, const Attachment& a) {
    const auto ledger = device.ledgers.find(a.client->group);
    if (ledger != device.ledgers.end()) ledger->second->learn_context(device.contexts.known_to(a.client->who, a.mps));
}

std::shared_ptr<Ledger> Server::new_ledger(const Group& group) {
    auto made = std::make_shared<Ledger>();
    made->set_limits(group.settings);
    return made;
}

// Clients that may not be in the group any more leave it. They still have its ledgers mapped, so the others leave
// these, too: they come back at once, and find new ones, in which everybody's memory counts that lives.
void Server::expel(const Group& group, Nanoseconds now) {
    const std::string& name = group.settings.spec.name;
    std::vector<Client*> members;
    for (auto& [id, client] : clients_)
        if (client->group == name) members.push_back(client.get());
    if (std::all_of(members.begin(), members.end(), [&](Client* client) { return may_join(group, *client); })) return;
    for (Client* client : members)
        drop(*client, may_join(group, *client) ? "joins anew" : "may not be in it any more");
    for (auto& device : devices_) {
        const auto known = device->ledgers.find(name);
        if (known == device->ledgers.end()) continue;
        auto made = new_ledger(group);
        made->learn_context(known->second->context_estimate());
        made->set_state(known->second->state());
        // What its members tell of it is known.
        if (LostLedger* lost = lost_ledger(*device, name))
            for (auto* ledgers : {&lost->asked, &lost->told}) ledgers->insert(known->second->number());
        else if (awaits_lost())
            lost_.push_back({device,
                             name,
                             known->second->number(),
                             {},
                             {},
                             {known->second->number()},
                             {known->second->number()}});
        known->second->close();
        const auto move = [&](Slot& slot, const std::string& who, bool administrator) {
            if (&slot.ledger() != known->second.get()) return;
            Slot next = Slot::inherit(made, slot.index(), who, administrator, slot.untracked());
            next.set_used(slot.used());
            slot.leave();  // those that are still in the one before see no room that is not there
            slot = std::move(next);
        };
        for (auto& [id, absent] : absent_) move(absent.slot, absent.who, absent.administrator);
        if (LostLedger* lost = lost_ledger(*device, name))
            for (auto& [of, slot] : lost->others) move(slot, "", true);
        known->second = std::move(made);
        settle_residency(*device, now);
    }
}

// Its limits hold on each device, so on one beside those that it was placed on it would have them once more.
bool Server::bind_group(const std::string& name, std::vector<Uuid> devices) {
    std::lock_guard lock(mutex_);
    const auto found = groups_.find(name);
    if (found == groups_.end()) return false;
    found->second.devices = std::move(devices);
    return true;
}

bool Server::remove_group(const std::string& name) {
    std::lock_guard lock(mutex_);
    auto found = groups_.find(name);
    if (found == groups_.end()) return true;
    if (found->second.clients > 0) return false;
    for (const auto& [id, absent] : absent_)
        if (absent.group == name) return false;
    forget_group(name);
    return true;
}

void Server::forget_if_unused(const std::string& name) {
    const auto found = groups_.find(name);
    if (found == groups_.end() || found->second.clients > 0 || !found->second.made_by_client) return;
    const bool is_held =
        std::any_of(absent_.begin(), absent_.end(), [&](const auto& entry) { return entry.second.group == name; });
    if (!is_held) forget_group(name);
}

void Server::forget_group(const std::string& name) {
    Nanoseconds now = clock();
    for (auto& device : devices_) {
        if (auto known = device->groups.find(name); known != device->groups.end()) {
            device->arbiter->remove_group(known->second, now);
            device->residency.remove_group(known->second);
            device->groups.erase(known);
        }
        device->ledgers.erase(name);
        device->latencies.erase(name);
        device->done.erase(name);
        device->contexts.forget(who_of_group(name));
    }
    std::erase_if(lost_, [&](const LostLedger& lost) { return lost.group == name; });
    gangs_.tie(name, false);
    groups_.erase(name);
}

namespace {

constexpr uint64_t kAnyMoved = UINT64_MAX;

bool at_rest(const Movable& movable, uint64_t moved_before) {
    const wire::ResidencyPage& page = *movable.page;
    const uint64_t moved = page.moved_out.load() + page.moved_in.load() + page.dropped.load();
    return page.away.load() == 0 && page.mapped.load() + page.room.load() == page.movable.load() &&
           (moved_before == kAnyMoved || moved_before == moved);
}

struct InSlot {
    uint64_t used;
    // What of it is memory, and not room that it keeps until its contexts are accounted for: that would hide as much
    // of the contexts.
    uint64_t memory;
};

// The room is read on both sides of the slot, for the client changes it around the slot.
InSlot in_slot(const Attachment& a) {
    const uint64_t before = a.page->room.load(std::memory_order_acquire);
    const uint64_t used = a.slot.used();
    const uint64_t room = std::max(before, a.page->room.load(std::memory_order_acquire));
    return {used, used - std::min(used, room)};
}

}  // namespace

void Server::book(Device& device, Attachment& a, const Holding& holding) {
    const auto& seen = holding.seen;
    const InSlot slot = in_slot(a);
    if (seen && (seen->memory != slot.used || seen->contexts != a.contexts)) return;
    // The driver has less of it while some is on the host.
    if (a.movable && !at_rest(*a.movable, seen ? seen->moved : kAnyMoved)) return;
    const uint64_t rest = holding.bytes - std::min(holding.bytes, slot.memory);
    // An allocation that is charged and not made yet, and one that is freed and still charged, hide as much of
    // the rest, for others to take. What the contexts take at least cannot be hidden so.
    const uint64_t context = device.contexts.known_to(a.client->who, a.mps);
    const uint64_t contexts = std::min(a.contexts * context, holding.bytes);
    // Of the others, such as modules, the more of two looks counts.
    const uint64_t last = std::min(std::exchange(a.rest, rest), a.slot.untracked());
    a.slot.set_untracked(std::max({rest, contexts, last}), uint64_t(clock()));
    // A context and nothing else: of managed memory the driver counts less than was charged, so the
    // difference would be less than a context, for everybody.
    const bool bare = a.contexts == 1 && slot.memory == 0 && rest > 0;
    if (bare && (context == 0 || rest < context)) {
        device.contexts.learn(a.client->who, a.client->administrator, a.mps, rest);
        for (auto& [id, other] : device.attachments) tell_context_size(device, *other);
    }
    if (rest > 0 && a.page->contexts.load() != a.contexts) publish_contexts(a);
}

void Server::set_memory_of_processes(const Uuid& uuid, const std::vector<Holding>& holdings) {
    std::lock_guard lock(mutex_);
    const Nanoseconds now = clock();
    const auto found = std::find_if(devices_.begin(), devices_.end(), [&](auto& d) { return d->uuid == uuid; });
    if (found == devices_.end() || holdings.empty()) return;
    Device& device = **found;
    std::unordered_map<pid_t, std::vector<Attachment*>> attachments;
    for (auto& [id, a] : device.attachments) attachments[a->client->pid].push_back(a.get());
    std::unordered_map<pid_t, std::vector<Absent*>> absent;
    for (auto& [id, each] : absent_)
        if (each.device.lock() == *found) absent[each.pid].push_back(&each);
    std::vector<Residency::Report> left;  // of those that are not connected
    for (const Holding& holding : holdings) {
        const std::vector<Attachment*>& theirs = attachments[holding.pid];
        const std::vector<Absent*>& left_behind = absent[holding.pid];
        if (!holding.only_confirms) {
            for (Attachment* a : theirs) book(device, *a, holding);
            for (Absent* each : left_behind) {
                const uint64_t used = each->slot.used();
                const auto& seen = holding.seen;
                if (seen && (seen->memory != used || seen->contexts != each->contexts)) continue;
                // Never less than it had: some of it may be on the host, or the driver not tell of it.
                each->slot.set_untracked(
                    std::max(each->slot.untracked(), holding.bytes - std::min(holding.bytes, used)), uint64_t(now));
            }
        }
        check_claims(device, theirs, left_behind, holding.bytes, now, left);
    }
    device.residency.report(left, now);
    device.residency.tick(now);
    settle_residency(device, now);
    apply(device, now);
    wake();
}

}  // namespace gemlet::server
