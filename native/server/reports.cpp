// What the server tells Python: events, the trace of steps, and the whole picture.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <unordered_set>
#include <utility>

#include "server/process.hpp"
#include "server/server.hpp"

namespace gemlet::server {

// That nobody has taken yet: of all the newest, and of one user, or group with a socket of its own, the first, so
// that neither the others' are lost nor all the daemon's time is for these.
constexpr size_t kMaxEvents = 10'000, kMaxEventsOfOne = 500;

void Server::emit(const char* kind, const Client& client, std::string text, const Device* device) {
    if (++events_of_[client.who] > kMaxEventsOfOne && !client.administrator) return;
    if (events_.size() >= kMaxEvents) events_.erase(events_.begin(), events_.begin() + kMaxEvents / 2);
    char index[16] = "";
    if (device) std::snprintf(index, sizeof index, "%d", device->index);
    events_.push_back({kind, client.group, client.command, index, std::move(text), client.pid, client.uid});
    uint64_t one = 1;
    ssize_t ignored = write(events_ready_.get(), &one, sizeof one);
    (void)ignored;
}

std::vector<Event> Server::take_events() {
    std::lock_guard lock(mutex_);
    uint64_t count;
    ssize_t ignored = read(events_ready_.get(), &count, sizeof count);
    (void)ignored;
    events_of_.clear();
    return std::exchange(events_, {});
}

void Server::note(const Attachment& attachment, const char* what, int64_t value) {
    trace_.add(attachment.client->who, {clock(), attachment.id, what, value});
}

// Which clients take turns changes seldom, so nobody is asked while nothing has changed.
void Server::note_standings(Device& device) {
    if (std::exchange(device.traced, device.arbiter->standings_changed()) == device.arbiter->standings_changed())
        return;
    for (auto& [id, a] : device.attachments) {
        const Why why = device.arbiter->standing(id);
        const Why before = std::exchange(a->traced, why);
        if (before != why) note(*a, "standing", int64_t(before) << 4 | int64_t(why));
    }
}

Traced Server::traced(const Device& device, const Attachment& a) {
    return {a.id, a.client->pid, a.client->uid, a.client->command, a.client->group, device.index, a.state, a.traced};
}

Trace::Part Server::trace(uint64_t from, size_t most) {
    std::lock_guard lock(mutex_);
    return trace_.read(from, most);
}

std::pair<uint64_t, bool> Server::trace_at(Nanoseconds at) {
    std::lock_guard lock(mutex_);
    return {trace_.number_at(at), trace_.forgot_since(at)};
}

std::vector<Traced> Server::traced() {
    std::lock_guard lock(mutex_);
    std::vector<Traced> all = trace_.gone();
    for (const auto& device : devices_)
        for (const auto& [id, a] : device->attachments) all.push_back(traced(*device, *a));
    return all;
}

void Server::note_unmanaged(const Client& client, std::string group, const std::string& why) {
    unmanaged_.put({client.pid, client.uid, client.command, std::move(group), why, client.strict, clock(), false,
                    start_of(client.pid)});
}

// Also those that joined and use no device. Whether the others live is for the caller to find out, without the mutex.
std::vector<Unmanaged> Server::unmanaged() const {
    std::vector<Unmanaged> all;
    std::unordered_set<pid_t> joined;
    for (const auto& [id, client] : clients_) {
        if (client->group.empty()) continue;
        joined.insert(client->pid);
        if (!client->refused.empty() || client->places.empty())
            all.push_back({client->pid, client->uid, client->command, client->group,
                           client->refused.empty() ? "has used no device so far" : client->refused, client->strict,
                           client->since, client->refused.empty()});
    }
    for (const Unmanaged& entry : unmanaged_.entries())
        if (joined.insert(entry.pid).second) all.push_back(entry);
    for (const auto& [id, absent] : absent_)
        if (joined.insert(absent.pid).second)
            all.push_back({absent.pid, absent.uid, absent.command, absent.group,
                           "has no connection to this daemon and lives: what it holds counts", std::nullopt,
                           absent.since, false, absent.started});
    return all;
}

ServerView Server::view() {
    ServerView v = view_locked();
    std::vector<Unmanaged> ended;
    std::erase_if(v.unmanaged, [&](const Unmanaged& entry) {
        if (entry.started == 0 || start_of(entry.pid) == entry.started) return false;
        ended.push_back(entry);
        return true;
    });
    if (ended.empty()) return v;
    std::lock_guard lock(mutex_);
    for (const Unmanaged& entry : ended) unmanaged_.forget_if_started(entry.pid, entry.started);
    return v;
}

ServerView Server::view_locked() {
    std::lock_guard lock(mutex_);
    ServerView v{clock(), denied_, {}, {}, unmanaged()};
    for (auto& [name, group] : groups_) v.groups.push_back(group.settings);
    for (auto& device : devices_) {
        DeviceView d{device->uuid, device->index, device->policy, device->arbiter->ignored(), {}};
        d.capacity = device->capacity;
        d.held = device->residency.held();
        d.host_promised = device->residency.host_promised();
        d.context_estimate = device->context_estimate;
        // Once over the clients: with thousands of groups, a search for each group's would keep clients waiting.
        std::unordered_map<std::string_view, std::vector<ClientView>> clients;
        auto residency = residencies(*device, v.now);
        for (auto& [id, a] : device->attachments) {
            clients[a->client->group].push_back({a->client->id,
                                                 a->client->pid,
                                                 a->client->uid,
                                                 a->client->command,
                                                 a->state,
                                                 a->slot.used(),
                                                 a->slot.untracked(),
                                                 a->page->launches.load(),
                                                 a->contexts,
                                                 a->mps,
                                                 a->client->since,
                                                 {},
                                                 a->page->work_ns.load(),
                                                 a->page->samples.load(),
                                                 a->page->busy_samples.load(),
                                                 a->page->awaited_samples.load()});
            if (!a->movable) continue;
            const wire::ResidencyPage& page = *a->movable->page;
            clients[a->client->group].back().movable = {residency[id], page.moved_out.load(), page.moved_in.load(),
                                                        page.dropped.load(), page.pinned.load()};
        }
        std::unordered_map<std::string_view, std::vector<AwaitedView>> awaited;
        for (const auto& [id, absent] : absent_)
            if (absent.device.lock() == device)
                awaited[absent.group].push_back({absent.pid, absent.slot.used(), absent.contexts});
        const auto usages = device->arbiter->usage(v.now);
        for (const GroupUsage& usage : usages) {
            GroupView g{usage, {}, 0, 0, false, {}};
            const std::string& name = g.usage.spec.name;
            if (auto group = groups_.find(name); group != groups_.end()) {
                g.settings = group->second.settings;
                g.made_by_client = group->second.made_by_client;
            }
            auto ledger = device->ledgers.find(name);
            if (ledger != device->ledgers.end()) {
                g.memory_used = ledger->second->used();
                g.untracked = ledger->second->untracked();
            }
            if (auto known = device->latencies.find(name); known != device->latencies.end()) {
                const auto& counts = known->second.counts();
                for (size_t i = 0; i < counts.size(); ++i)
                    if (counts[i]) g.latencies.emplace_back(i, counts[i]);
                g.latency_sum = known->second.sum();
            }
            if (auto theirs = clients.find(name); theirs != clients.end()) g.clients = std::move(theirs->second);
            if (auto theirs = awaited.find(name); theirs != awaited.end()) g.awaited = std::move(theirs->second);
            d.groups.push_back(std::move(g));
        }
        v.devices.push_back(std::move(d));
    }
    return v;
}

}  // namespace gemlet::server
