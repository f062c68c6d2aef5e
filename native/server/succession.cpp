// One daemon follows another while programs run. The elder stops its thread and lets the successor have what programs
// depend on: the sockets where they connect, those of programs that are on their way in, and each group's ledger with
// the slots of its members, so that no memory goes uncounted while they come across one by one. Turns are not handed
// over: every program joins anew, and the arbiter begins afresh with those it finds.
//
// One that is started after another was killed knows of the members what that one had written down (members.py);
// their ledgers are gone, so each has in a new one what it held, until it comes and says so itself.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "arbiter/saturating.hpp"
#include "futex.h"
#include "server/process.hpp"
#include "server/server.hpp"

namespace gemlet::server {

namespace {

constexpr GroupId kNoGroup = GroupId(-1);  // one that its programs make anew when they come

Descriptor duplicate(int fd) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) throw std::system_error(errno, std::generic_category(), "a descriptor of the daemon before");
    return Descriptor(copy);
}

}  // namespace

Estate Server::hand_over() {
    halt();
    std::lock_guard lock(mutex_);
    Estate estate;
    for (const auto& listener : listeners_)
        if (listener) estate.listeners.push_back({listener->path, listener->group, listener->socket.get()});
    for (const auto& [id, client] : clients_)
        if (client->places.empty())
            estate.callers.push_back(
                {client->socket.get(), client->fixed, client->group, client->strict, client->version});
    estate.ledgers = ledgers();
    return estate;
}

std::vector<LedgerImage> Server::members() {
    std::lock_guard lock(mutex_);
    std::vector<LedgerImage> found = ledgers();
    // A pid that means nothing to this daemon means nothing to the next one.
    for (LedgerImage& image : found) std::erase_if(image.slots, [](const HeldSlot& slot) { return slot.pid <= 0; });
    std::erase_if(found, [](const LedgerImage& image) { return image.slots.empty(); });
    return found;
}

std::vector<LedgerImage> Server::ledgers() {
    for (const auto& device : devices_) read_claims(*device);
    std::map<const Ledger*, std::vector<HeldSlot>> held;
    const auto note = [&](const auto& owner, const Slot& slot, uint32_t contexts, const OnDevice& has) {
        if (owner.process.get() < 0) return;  // nobody could tell when it ends
        held[&slot.ledger()].push_back({slot.index(), owner.pid, owner.uid, owner.started, owner.process.get(),
                                        owner.who, owner.administrator, contexts, slot.used(), slot.untracked(),
                                        has});
    };
    for (const auto& [id, client] : clients_) {
        for (const Place& place : client->places) {
            const Attachment& a = *place.attachment;
            note(*client, a.slot, a.page->contexts.load() == a.contexts ? a.contexts : 0,
                 believed(on_device(*place.device, a), a.unconfirmed));
        }
    }
    for (const auto& [id, absent] : absent_)
        note(absent, absent.slot, absent.contexts, believed(absent.has, absent.unconfirmed));
    std::vector<LedgerImage> all;
    for (const auto& device : devices_)
        for (const auto& [group, ledger] : device->ledgers)
            all.push_back({device->uuid, device->index, ledger->context_estimate(), group, ledger->ledger_fd(),
                           std::move(held[ledger.get()]), ledger->number()});
    return all;
}

// Pages stay as they are, as if this process had been killed: a client that waits keeps to what was agreed, for the
// moment that it takes to join the successor.
void Server::leave() {
    std::lock_guard lock(mutex_);
    for (auto& device : devices_)
        for (auto& [name, ledger] : device->ledgers) ledger->pass_on();
    std::vector<int> shared;  // the other daemon has them, too
    for (const auto& listener : listeners_)
        if (listener) shared.push_back(listener->socket.release());
    for (auto& [id, client] : clients_) {
        if (client->places.empty()) shared.push_back(client->socket.release());
        client->socket = ForeignSocket();
    }
    close_shared_apart(shared);
    for (auto& [id, absent] : absent_) absent.slot.leave();
    for (auto& device : devices_)
        for (auto& [id, attachment] : device->attachments) {
            attachment->slot.leave();
            futex_wake_some(attachment->page->token);  // finds that the connection is gone
        }
    for (auto& device : devices_) device->attachments.clear();
    clients_.clear();
    absent_.clear();
    listeners_.clear();
}

void Server::inherit_listener(const std::string& path, int fd) {
    ForeignSocket copy(duplicate(fd).release());
    if (options_.refuse_files) refuse_files(copy.get());
    std::lock_guard lock(mutex_);
    sockets_before_[path] = std::move(copy);
}

void Server::inherit_caller(const Caller& caller) {
    auto client = std::make_unique<Client>();
    client->socket = ForeignSocket(duplicate(caller.fd).release());
    client->strict = caller.strict;
    client->version = caller.version;
    std::lock_guard lock(mutex_);
    if (!identify(*client, caller.fixed)) return;
    const auto group = groups_.find(caller.group);
    if (!caller.group.empty() && group == groups_.end()) return;  // it finds the socket closed, and joins anew
    Client& made = *client;
    if (!enter(std::move(client)) || caller.group.empty()) return;
    made.group = caller.group;
    ++group->second.clients;
}

void Server::inherit_ledger(const LedgerImage& image) {
    const bool is_lost = image.fd < 0;
    auto ledger = is_lost ? std::make_shared<Ledger>() : std::make_shared<Ledger>(duplicate(image.fd));
    std::lock_guard lock(mutex_);
    const Nanoseconds now = clock();
    const std::shared_ptr<Device> device = device_for(image.device, image.index);
    // Its members' users are not known to have shown it, unless all may speak for everybody.
    const bool trusted = !image.slots.empty() && std::all_of(image.slots.begin(), image.slots.end(),
                                                             [](const HeldSlot& slot) { return slot.administrator; });
    if (trusted) device->contexts.learn("", true, false, image.context_estimate);
    const auto group = groups_.find(image.group);
    if (group != groups_.end()) ledger->set_limits(group->second.settings);
    ledger->learn_context(image.context_estimate);
    if (!is_lost) follows_ = true;
    ledger->set_state(!is_lost || !image.slots.empty() ? wire::LedgerState::kHeld : wire::LedgerState::kOpen);
    const auto noted = is_lost ? std::make_shared<const Noted>() : nullptr;
    if (is_lost && !image.slots.empty())
        lost_.push_back(
            {device, image.group, image.number, {image.ended.begin(), image.ended.end()}, {}, {}, {}, noted});
    for (const HeldSlot& held : image.slots) {
        Descriptor process = duplicate(held.process_fd);
        // Nothing fails from here on: a slot that is given back would be free, and its owner is there.
        Slot slot = Slot::inherit(ledger, held.index, held.who, held.administrator, held.untracked);
        if (is_lost) slot.set_used(held.used);
        // Its place on the device is not another's before it comes: like one that left, and is there still.
        const ClientId there = next_attachment_++;
        auto& [id, absent] =
            await({device, image.group, held.pid, held.uid, held.started, 0, command_of(held.pid), std::move(process),
                   held.who, held.administrator, FairPlace(), now, held.contexts, there, held.has, std::move(slot),
                   is_lost ? held.before : wire::kLedgerSlots, held.untracked, noted});
        inquire(id, absent);
        if (is_lost) lost_.back().known.insert(held.before);
        const GroupId id_there = group == groups_.end() ? kNoGroup : group_on(*device, group->second, now);
        device->residency.expect(there, id_there, held.has.fixed, held.has.movable, held.has.mapped, now);
    }
    device->ledgers[image.group] = std::move(ledger);
}

}  // namespace gemlet::server
