// Messages of clients. The server believes only what the kernel vouches for, the sender of a message: sizes,
// indices and epochs are checked, times are clamped, and a client that speaks rubbish is dropped.
#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "futex.h"
#include "server/round.hpp"
#include "server/server.hpp"

namespace gemlet::server {

using wire::Message;
using wire::MessageType;
using wire::Status;
using wire::TokenState;

namespace {

std::string text_of(const char* text, size_t size) {
    return {text, strnlen(text, size)};
}

constexpr const char* kStops[] = {"stopped: deadline", "stopped: idle", "stopped: revoked", "stopped: exit"};

StopReason reason_of(const Message& message) {
    return static_cast<StopReason>(std::min<uint32_t>(uint32_t(message.reason), uint32_t(StopReason::kExit)));
}

// When the client says that it happened; it has no reason to say it much later.
Nanoseconds when(const Message& message, Nanoseconds now) {
    return std::clamp(Nanoseconds(message.time_ns), now - 1'000'000'000, now);
}

}  // namespace

Server::Received Server::receive(Client& client) {
    const Next next = client.refuses_files ? Next::kMessage : next_from(client.socket.get());
    if (next == Next::kNothing) return Received::kNothing;
    if (next == Next::kEnd) return Received::kEnd;
    if (next == Next::kFiles) {
        ++denied_;
        emit("denied", client, "sent a message with descriptors");
        return Received::kEnd;
    }
    Message message;
    ssize_t n = recv(client.socket.get(), &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? Received::kNothing : Received::kEnd;
    if (n == 0) return Received::kEnd;
    if (n != ssize_t(sizeof message) || message.header.magic != wire::kMagic) {
        ++denied_;
        emit("denied", client, "sent something that is not a message of gemlet's");
        return Received::kEnd;
    }
    return handle(client, message) ? Received::kMessage : Received::kEnd;
}

// Users have their turns, a message each; those of one user, their clients. So one with a thousand clients that send
// without end delays another by no more than its own share of the time.
void Server::receive_from(const std::vector<uint32_t>& ids) {
    if (ids.empty()) return;
    struct Sender {
        std::string who;
        std::vector<uint32_t> clients;
        size_t next = 0;  // of them
    };
    std::vector<Sender> senders;
    for (const uint32_t id : ids) {
        const auto found = clients_.find(id);
        if (found == clients_.end()) continue;
        const std::string& who = found->second->who;
        auto sender = std::find_if(senders.begin(), senders.end(), [&](auto& s) { return s.who == who; });
        if (sender == senders.end()) sender = senders.insert(senders.end(), Sender{who, {}});
        sender->clients.push_back(id);
    }
    const Round round(mutex_, clock() + kRound);
    for (bool more = true; more && !round.is_over(clock());) {
        more = false;
        for (Sender& sender : senders) {
            if (sender.clients.empty()) continue;
            more = true;
            if (sender.next == sender.clients.size()) sender.next = 0;
            const auto place = sender.clients.begin() + std::ptrdiff_t(sender.next);
            const auto found = clients_.find(*place);
            const Received received = found == clients_.end() ? Received::kNothing : receive_safely(*found->second);
            if (received == Received::kEnd) drop(*found->second, "left");
            if (received == Received::kMessage)
                ++sender.next;
            else
                sender.clients.erase(place);
        }
    }
}

bool Server::answer(Client& client, Message message, Status status, const std::string& text,
                    const std::vector<int>& descriptors) {
    message.header.magic = wire::kMagic;
    message.header.version = client.version;
    message.status = status;
    std::memset(message.text, 0, sizeof message.text);
    text.copy(message.text, sizeof message.text - 1);
    iovec part{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 6)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!descriptors.empty()) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
        cmsghdr* c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
        std::memcpy(CMSG_DATA(c), descriptors.data(), sizeof(int) * descriptors.size());
    }
    bool sent = sendmsg(client.socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof message);
    return sent && status == Status::kOk;
}

bool Server::handle(Client& client, const Message& message) {
    if (message.header.type == MessageType::kHello) return hello(client, message);
    if (message.header.version != client.version) return false;
    if (client.group.empty()) return false;  // nothing else before it has joined
    if (message.header.type == MessageType::kAttach) return attach(client, message);
    if (message.header.type == MessageType::kLeaves) {
        const std::string why = printable(text_of(message.text, sizeof message.text));
        note_unmanaged(client, client.group, "it says: " + why);
        emit("denied", client, why);
        return false;
    }
    if (message.header.device >= client.places.size()) return false;
    const auto [device, attachment] = client.places[message.header.device];
    Nanoseconds now = clock();
    listened_ = true;
    uint32_t epoch = message.header.epoch;
    switch (message.header.type) {
        case MessageType::kRequest:
            note(*attachment, "request", epoch);
            if (attachment->wanted == kNever) attachment->wanted = when(message, now);
            attachment->page->heard_ns.store(uint64_t(now), std::memory_order_relaxed);
            if (epoch != 0 && epoch != attachment->epoch) break;  // it has been granted or parked since
            if (!withheld(*device, *attachment, now)) device->arbiter->request(attachment->id, now);
            if (std::strcmp(attachment->state, "idle") == 0) attachment->state = "waits";
            break;
        case MessageType::kTook:
            note(*attachment, "took", epoch);
            if (epoch == attachment->epoch && epoch != attachment->over) {
                if (attachment->wanted == kNever) attachment->wanted = when(message, now);
                device->arbiter->took(attachment->id, now);
                device->residency.request(attachment->id, now);
                attachment->state = "runs";
                attachment->holds = true;
            }
            break;
        case MessageType::kStopped:
            note(*attachment, epoch == attachment->epoch ? kStops[size_t(reason_of(message))] : "stopped too late",
                 int64_t(message.tail_ns));
            if (epoch == attachment->epoch) stopped(*device, *attachment, message, now);
            break;
        case MessageType::kDrained: {
            Nanoseconds at = when(message, now);
            note(*attachment, "drained", at);
            read_progress(*device, *attachment);
            read_progress(*device);
            attachment->drains = epoch != attachment->over;
            device->arbiter->drained(attachment->id, at, now, attachment->drains);
            break;
        }
        case MessageType::kContext:
            context_changed(*device, *attachment, message);
            break;
        case MessageType::kRefused:
            emit("refused", client, std::to_string(message.value), device.get());
            break;
        case MessageType::kBefore:
            tells(*device, client, message);
            break;
        case MessageType::kAdmit:
            admit(*device, *attachment, message, now);
            break;
        case MessageType::kRoom:
            make_room(*device, *attachment, message, now);
            break;
        case MessageType::kMoved:
            if (attachment->movable) note(*attachment, "resident", int64_t(attachment->movable->page->mapped.load()));
            break;
        default:
            ++denied_;
            emit("denied", client, "sent a message of an unknown type");
            return false;
    }
    settle_residency(*device, now);
    apply(*device, now);
    return true;
}

void Server::stopped(Device& device, Attachment& a, const Message& message, Nanoseconds now) {
    uint32_t word = wire::token_word(a.epoch, TokenState::kStopping);
    a.page->token.compare_exchange_strong(word, wire::token_word(a.epoch, TokenState::kBlocked));
    const StopReason reason = reason_of(message);
    auto tail = Nanoseconds(std::min<uint64_t>(message.tail_ns, 60'000'000'000u));
    bool wants = message.flags & wire::kStillRequests;
    a.state = wants ? "waits" : "idle";
    if (!wants) served(device, a, message, now);
    read_progress(device);
    // One thread took the parked token, another found that it was not used, and said so first: what the first one
    // will say is over.
    if (!std::exchange(a.holds, false)) device.arbiter->took(a.id, now);
    a.over = a.epoch;
    a.drains = true;
    device.arbiter->stopped(a.id, reason, tail, now, message.flags & wire::kUnused);
    if (!wants) device.residency.idle(a.id, now);
    if (wants && !withheld(device, a, now)) device.arbiter->request(a.id, now);
    futex_wake_some(a.page->token);
}

// It has had no work for some time: what it was asked to do is done. How long that took, and when it ended, is a
// claim.
void Server::served(Device& device, Attachment& a, const Message& message, Nanoseconds now) {
    const Nanoseconds since = std::exchange(a.wanted, kNever);
    const auto group = groups_.find(a.client->group);
    if (since == kNever || reason_of(message) != StopReason::kIdle || group == groups_.end()) return;
    if (group->second.settings.spec.priority != arbiter::Priority::kLatency) return;
    const auto pause = Nanoseconds(std::min<uint64_t>(message.value, uint64_t(now - since)));
    const Nanoseconds took = std::max<Nanoseconds>(when(message, now) - pause - since, 0);
    device.latencies[a.client->group].add(took);
    note(a, "served", took);
}

void Server::context_changed(Device& device, Attachment& a, const Message& message) {
    const uint64_t before = a.contexts, estimate = a.slot.ledger().context_estimate();
    a.contexts = uint32_t(std::min<uint64_t>(message.value, 1024));
    // Until NVML has been asked, a context is worth what the others were.
    uint64_t untracked = a.slot.untracked();
    if (a.contexts >= before)
        untracked += (a.contexts - before) * estimate;
    else
        untracked -= std::min(untracked, (before - a.contexts) * estimate);
    a.slot.set_untracked(a.contexts ? untracked : 0, uint64_t(clock()));
    // The very first context here: its size is known only once the driver was asked, and the client waits for that.
    if (estimate > 0 || a.contexts < before || !device.measured) publish_contexts(a);
    emit("context", *a.client, std::to_string(a.contexts), &device);
}

void Server::publish_contexts(Attachment& a) {
    a.page->contexts.store(a.contexts, std::memory_order_release);
    futex_wake_some(a.page->contexts);
}

bool Server::hello(Client& client, const Message& message) {
    Message reply{};
    reply.header.type = MessageType::kWelcome;
    reply.client = client.id;
    if (!client.group.empty()) return false;  // once
    client.strict = (message.flags & wire::kHelloStrict) != 0;
    client.limited = !(message.flags & wire::kHelloCreateGroup);
    client.version = message.header.version;
    if (!wire::is_spoken(client.version)) {
        const std::string why = "this daemon speaks versions " + std::to_string(wire::kWireOldest) + " to " +
                                std::to_string(wire::kWireVersion) + ", the hook version " +
                                std::to_string(std::exchange(client.version, wire::kWireVersion));
        note_unmanaged(client, "", why);
        return answer(client, reply, Status::kMismatch, why);
    }
    const bool says_so = !(message.flags & wire::kHelloAgain);
    end_absent_if(
        [&](const Absent& absent) { return is_of(absent, client) && is_replaced(absent, client.image, says_so); });
    std::string name = client.fixed ? *client.fixed : text_of(message.group, sizeof message.group);
    auto deny = [&](Status status, const std::string& why) {
        ++denied_;
        client.command = client.command.empty() ? "?" : client.command;
        emit("denied", client, "group '" + printable(name) + "': " + why);
        note_unmanaged(client, printable(name), why);
        return answer(client, reply, status, why);
    };
    if (name.empty() || name.size() >= wire::kGroupNameBytes) return deny(Status::kMalformed, "no group was named");
    if (!is_utf8(name)) return deny(Status::kMalformed, "its name is not UTF-8");
    if (name != printable(name)) return deny(Status::kMalformed, "its name has control characters");
    auto found = groups_.find(name);
    if (found == groups_.end()) {
        if (!(message.flags & wire::kHelloCreateGroup)) return deny(Status::kUnknown, "there is no such group");
        if (has_too_many_groups(client.acts_as))
            return deny(Status::kFull,
                        "programs of user " + std::to_string(client.acts_as) + " have made too many groups");
        GroupSettings settings;
        settings.spec.name = name;
        settings.users = std::vector<uid_t>{client.acts_as};
        found = groups_.emplace(name, Group{settings, true, 0, client.acts_as}).first;
    }
    if (!may_join(found->second, client))
        return deny(Status::kDenied, "user " + std::to_string(client.uid) + " may not join it");
    client.group = name;
    ++found->second.clients;
    end_absent_if([&](const Absent& absent) { return is_of(absent, client) && absent.group != name; });
    name.copy(reply.group, sizeof reply.group - 1);
    emit("join", client);
    return answer(client, reply, Status::kOk, "");
}

GroupId Server::group_on(Device& device, Group& group, Nanoseconds now) {
    const std::string& name = group.settings.spec.name;
    auto known = device.groups.find(name);
    if (known == device.groups.end())
        known = device.groups.emplace(name, device.arbiter->set_group(spec_on(device, group), now)).first;
    return known->second;
}

}  // namespace gemlet::server
