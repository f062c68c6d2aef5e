// A client begins to use a device: what it needs there, what it has from before, its pages, and its place among
// others.
#include <algorithm>
#include <utility>
#include <vector>

#include "server/server.hpp"

namespace gemlet::server {

using wire::Message;
using wire::MessageType;
using wire::Status;

namespace {

constexpr size_t kMaxDevices = 64;  // of one process

Message reply_to_attach() {
    Message reply{};
    reply.header.type = MessageType::kAttached;
    return reply;
}

}  // namespace

void Server::refuse_use(Client& client, Status status, const std::string& why) {
    client.refused = why;
    answer(client, reply_to_attach(), status, why);
}

void Server::refuse_more(Client& client, const FairLimit& limit, const char* what) {
    ++denied_;
    const std::string why = client.who + " has " + std::to_string(limit.held(client.who)) + " of " +
                            std::to_string(limit.places(client.who)) + " " + what + " already";
    emit("denied", client, why);
    refuse_use(client, Status::kFull, why);
}

// None: it may not use the device, which it has been told.
std::optional<Server::Use> Server::use_of_device(Client& client, const Message& message) {
    Uuid uuid;
    std::copy_n(message.uuid, uuid.size(), uuid.begin());
    const auto place_in = [&](FairLimit& limit) { return FairPlace::in(limit, client.who, client.administrator); };
    const std::vector<Uuid>& bound = groups_.at(client.group).devices;
    if (!bound.empty() && std::find(bound.begin(), bound.end(), uuid) == bound.end()) {
        ++denied_;
        const std::string why = "group '" + client.group + "' is bound to other devices";
        emit("denied", client, why);
        refuse_use(client, Status::kDenied, why);
        return std::nullopt;
    }
    if (client.places.size() >= kMaxDevices) {
        refuse_use(client, Status::kFull, "this process uses too many devices");
        return std::nullopt;
    }
    FairPlace use = place_in(uses_);
    if (!use) {
        refuse_more(client, uses_, "uses of devices");
        return std::nullopt;
    }
    FairPlace named;
    if (std::none_of(devices_.begin(), devices_.end(), [&](auto& d) { return d->uuid == uuid; })) {
        if (named = place_in(named_devices_); !named) {
            forget_unused_devices();
            named = place_in(named_devices_);
        }
        if (!named) {
            refuse_more(client, named_devices_, "devices that the daemon does not know by itself");
            return std::nullopt;
        }
    }
    const std::shared_ptr<Device> device = device_for(uuid, int(std::min<uint64_t>(message.value, kMaxDevices)));
    if (named) device->named = std::move(named);
    for (const Place& other : client.places) {
        if (other.device != device) continue;
        answer(client, reply_to_attach(), Status::kMalformed, "attached already");
        return std::nullopt;
    }
    return Use{device, std::move(use)};
}

const std::shared_ptr<Ledger>& Server::ledger_on(Device& device, const Group& group) {
    const std::string& name = group.settings.spec.name;
    auto known = device.ledgers.find(name);
    if (known == device.ledgers.end()) known = device.ledgers.emplace(name, new_ledger(group)).first;
    return known->second;
}

// The one that it had before, that of which others told, or a free one. None: there is none for it.
std::optional<Slot> Server::slot_for(const Client& client, const Device& device,
                                     const std::shared_ptr<Ledger>& ledger, const Message& message,
                                     std::optional<Absent>& before) {
    std::optional<Slot> told = claim_told(device, client.group, message);
    if (before) {
        comes(*before, message);
        return std::move(before->slot);
    }
    if (told) return told;
    return Slot::take(ledger, client.who, may_have_all(groups_.at(client.group), client));
}

// It does not begin to be believed anew, and what it says that it has counts.
void Server::take_up(Device& device, Attachment& a, const Message& message, const std::optional<Absent>& before) {
    a.slot.set_used(std::max(a.slot.used(), message.tail_ns));
    a.mps = message.flags & wire::kUnderMps;
    tell_context_size(device, a);
    if (before) {
        a.contexts = before->contexts;
        a.unconfirmed = before->unconfirmed;
        a.presumed = before->presumed;
    }
    a.may_adopt = before || a.client->started <= begun_;
    a.page->contexts = a.contexts;
    if (Message contexts{}; message.slot > a.contexts) {
        contexts.value = message.slot;
        context_changed(device, a, contexts);
    }
    has_come(device, a, message);
}

void Server::open_page(Attachment& a, Nanoseconds now) const {
    a.page->attached = 1;
    a.page->deadline_ns = wire::kNever;
    a.page->window_ns = uint64_t(options_.arbiter.window_alone);
    a.page->lead_ns = uint64_t(options_.lead);
    a.page->heard_ns = uint64_t(now);
}

bool Server::send_pages(Client& client, const Device& device, Attachment& a, Message reply) {
    const bool latency = groups_.at(client.group).settings.spec.priority == arbiter::Priority::kLatency;
    const Ledger& ledger = *device.ledgers.at(client.group);
    std::vector<int> descriptors = {a.page.fd(), ledger.limits_fd(), ledger.ledger_fd(),
                                    latency ? device.page.fd() : device.page_to_read.get()};
    if (a.movable) {
        reply.flags |= wire::kMovable;
        descriptors.push_back(a.movable->page.fd());
    }
    const bool sent = answer(client, reply, Status::kOk, "", descriptors);
    a.page.close_fd();
    if (a.movable) a.movable->page.close_fd();
    return sent;
}

bool Server::attach(Client& client, const Message& message) {
    std::optional<Use> use = use_of_device(client, message);
    if (!use) return true;
    Device& device = *use->device;
    Group& group = groups_.at(client.group);
    const Nanoseconds now = clock();
    // Steps that may throw for lack of descriptors come before any step that would have to be undone.
    const std::shared_ptr<Ledger>& ledger = ledger_on(device, group);
    auto attachment = std::make_unique<Attachment>(next_attachment_++, client);
    Attachment& a = *attachment;
    if (device.capacity || group.settings.resident) a.movable = std::make_unique<Movable>();

    Message reply = reply_to_attach();
    std::optional<Absent> before = claim(device, client);
    if (is_to_tell(use->device, client.group, message.header.epoch)) reply.flags |= wire::kTellBefore;
    std::optional<Slot> slot = slot_for(client, device, ledger, message, before);
    if (!slot) {
        refuse_more(client, ledger->slot_limit(), "places for processes of the group on this device");
        return true;
    }
    a.slot = std::move(*slot);
    a.use = std::move(use->place);
    take_up(device, a, message, before);
    open_page(a, now);
    agree_with_newcomer(a, group);
    join_residency(device, a, group, before ? &*before : nullptr, now);
    device.attachments[a.id] = std::move(attachment);
    device.arbiter->add_client(a.id, group_on(device, group, now), now, a.mps);
    reply.header.device = uint32_t(client.places.size());
    reply.slot = a.slot.index();
    client.places.push_back({use->device, &a});
    note(a, "joins", 0);
    if (client.places.size() > 1) gangs_.tie(client.group);
    client.refused.clear();
    unmanaged_.forget(client.pid);
    apply(device, now);
    settle_residency(device, now);
    return send_pages(client, device, a, reply);
}

}  // namespace gemlet::server
