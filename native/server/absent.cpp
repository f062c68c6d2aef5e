// Programs that live and are not connected: their memory is on the device, so it counts.
//
// A program may close all its descriptors, ours among them, and then be unable to join again, because it has changed
// its user or its root directory, or is stopped; or it has yet to come across from the daemon before. A killed one
// closes its socket before the driver has taken its memory back. All of them keep their slots until the process has
// ended, comes back, or has become another program by exec(2), at which the driver takes everything back as well.
// Where nobody can see the latter, they keep them.
#include <poll.h>
#include <sys/epoll.h>
#include <algorithm>
#include <ctime>
#include <utility>

#include "server/process.hpp"
#include "server/round.hpp"
#include "server/server.hpp"

namespace gemlet::server {

namespace {

constexpr Nanoseconds kLook = 1'000'000'000;  // at programs that may have become others

bool has_ended(const Absent& absent) {
    pollfd ended{absent.process.get(), POLLIN, 0};
    return absent.process.get() >= 0 && poll(&ended, 1, 0) != 0;
}

}  // namespace

bool Server::is_of(const Absent& absent, const Client& client) {
    if (client.pid > 0) return absent.pid == client.pid;
    const uint64_t number = number_of(client.process.get());  // its pid is that of all whom this daemon does not see
    return number != 0 && absent.pid <= 0 && number_of(absent.process.get()) == number;
}

// Whether its process runs another program by now. `image`: of that.
bool Server::is_replaced(const Absent& absent, uint64_t image, bool if_unknown) {
    return image != 0 && absent.image != 0 ? image != absent.image : if_unknown;
}

std::pair<const uint32_t, Absent>& Server::await(Absent absent) {
    while (absent_.contains(next_absent_)) ++next_absent_;
    const uint32_t id = next_absent_++;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = kAbsent | id}};
    // Without a descriptor, or a place in epoll, it is found to have ended when all are looked at.
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, absent.process.get(), &event);
    if (absent_.empty()) look_at_ = clock() + kLook;
    return *absent_.emplace(id, std::move(absent)).first;
}

// It is there no more: what it held is free.
void Server::end_absent(uint32_t id) {
    auto node = absent_.extract(id);
    if (!node) return;
    inquiries_.forget(kAbsent | id);
    const auto device = node.mapped().device.lock();
    const ClientId there = node.mapped().residency;
    const std::string group = node.mapped().group;
    node = {};  // its slot is free before any client learns that there is room
    if (device) {
        const Nanoseconds now = clock();
        device->residency.remove(there, now);
        settle_residency(*device, now);
        apply(*device, now);
    }
    forget_if_unused(group);
}

void Server::end_absent_if(const std::function<bool(const Absent&)>& which) {
    std::vector<uint32_t> ended;
    for (const auto& [id, absent] : absent_)
        if (which(absent)) ended.push_back(id);
    for (const uint32_t id : ended) end_absent(id);
}

void Server::look_at_absent(Nanoseconds now) {
    if (absent_.empty() || now < look_at_) return;
    look_at_ = now + kLook;
    // Most are told of by epoll; of many that ended just now, the rest is for it, or for the next look.
    const Round round(mutex_, now + kRound);
    for (auto next = absent_.begin(); next != absent_.end();) {
        const uint32_t id = next->first;
        if (has_ended(next->second)) {
            end_absent(id);
            if (round.is_over(clock())) break;
        }
        next = absent_.upper_bound(id);
    }
    for (auto& [id, absent] : absent_) inquire(id, absent);
}

void Server::inquire(uint32_t id, Absent& absent) {
    if (!std::exchange(absent.is_looked_at, true)) inquiries_.ask(absent.who, kAbsent | id, absent.pid);
}

// Which programs they are from the daemon before, as far as the kernel says: one that comes may be another by then.
void Server::await_inquiries() {
    constexpr Nanoseconds kPatience = 1'000'000'000, kStep = 1'000'000;
    const auto is_looked_at = [](const auto& entry) { return entry.second.is_looked_at; };
    const Nanoseconds begin = clock();
    while (std::any_of(absent_.begin(), absent_.end(), is_looked_at) && clock() - begin < kPatience) {
        const timespec step{0, kStep};
        nanosleep(&step, nullptr);
        take_answers();
    }
}

void Server::looked_at_absent(uint32_t id, const std::optional<Look>& look) {
    const auto found = absent_.find(id);
    if (found == absent_.end()) return;
    Absent& absent = found->second;
    absent.is_looked_at = false;
    if (!look) return;
    // Without a descriptor nobody can tell of one in a namespace that this daemon does not see.
    const bool is_unseen = absent.process.get() < 0 && (absent.started == 0 || look->started != absent.started);
    if (is_unseen || is_replaced(absent, look->image, false)) return end_absent(id);
    if (absent.image == 0) absent.image = look->image;
}

// The slot that the process had before, with what is in it.
std::optional<Absent> Server::claim(const Device& device, const Client& client) {
    const auto found = std::find_if(absent_.begin(), absent_.end(), [&](const auto& entry) {
        const Absent& absent = entry.second;
        return is_of(absent, client) && absent.started == client.started && absent.group == client.group &&
               absent.device.lock().get() == &device;
    });
    if (found == absent_.end()) return std::nullopt;
    inquiries_.forget(kAbsent | found->first);
    std::optional<Absent> absent = std::move(found->second);
    absent_.erase(found);
    return absent;
}

}  // namespace gemlet::server
