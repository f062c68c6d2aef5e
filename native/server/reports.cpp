// What the server tells Python: events, the trace of steps, and the whole picture.
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "arbiter/saturating.hpp"
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
                    client.started, client.limited, accounts_.of(client.acts_as)});
}

// Also those that joined and use no device.
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

// Takes in what a client has done since the last time. It writes what it pleases into its page, so no count falls.
void Server::count(Device& device, Attachment& a) {
    Done now{.launches = a.page->launches.load(), .work_ns = a.page->work_ns.load()};
    if (a.movable) {
        const wire::ResidencyPage& page = *a.movable->page;
        now.moved = arbiter::plus(page.moved_out.load(), page.moved_in.load());
    }
    if (!std::exchange(a.known, true)) a.counted.moved = now.moved;
    Done& sum = device.done[a.client->group];
    for (uint64_t Done::* each : {&Done::launches, &Done::work_ns, &Done::moved}) {
        sum.*each = arbiter::plus(sum.*each, arbiter::minus(now.*each, a.counted.*each));
        a.counted.*each = std::max(a.counted.*each, now.*each);
    }
}

ServerView Server::view(bool listed) {
    {
        const std::lock_guard lock(mutex_);
        look_at_unmanaged(clock());
    }
    return view_locked(listed);
}

// One that has not been reaped, or whose pid is another one's by now, is seen to have ended a moment later.
void Server::look_at_unmanaged(Nanoseconds now) {
    constexpr Nanoseconds kLook = 1'000'000'000;
    std::vector<Unmanaged> ended;
    for (const Unmanaged& entry : unmanaged_.entries()) {
        if (kill(entry.pid, 0) != 0 && errno == ESRCH)
            ended.push_back(entry);
        else if (now >= look_at_unmanaged_ && unmanaged_looked_at_.insert(entry.pid).second)
            inquiries_.ask("user " + std::to_string(entry.account), kUnmanaged | uint32_t(entry.pid), entry.pid);
    }
    if (now >= look_at_unmanaged_) look_at_unmanaged_ = now + kLook;
    for (const Unmanaged& entry : ended) unmanaged_.looked_at(entry.pid, 0);
    std::erase_if(unmanaged_looked_at_, [&](pid_t pid) {
        if (unmanaged_.has(pid)) return false;
        inquiries_.forget(kUnmanaged | uint32_t(pid));
        return true;
    });
}

namespace {

bool is_idle(const Attachment& a) {
    return std::strcmp(a.state, "idle") == 0;
}

// What becomes of one group's clients, one after the other.
struct Members {
    size_t programs = 0, expected = 0;
    uint64_t swapped = 0;
    bool awaits_memory = false, all_idle = true;
    std::string waits, away;  // the first reason why one waits for memory, or that it is away
    std::vector<pid_t> beside_mps;
    std::vector<ClientView> listed = {};
    std::vector<AwaitedView> awaited = {};

    void add(const Attachment& a, const ResidencyUsage* usage) {
        ++programs;
        all_idle = all_idle && is_idle(a);
        if (!a.mps) beside_mps.push_back(a.client->pid);
        if (!usage) return;
        swapped = arbiter::plus(swapped, arbiter::minus(usage->movable, usage->mapped));
        const bool waits_here = usage->queued || (!usage->resident && std::strcmp(a.state, "waits") == 0);
        awaits_memory = awaits_memory || waits_here;
        if (waits_here && waits.empty()) waits = usage->reason;
        if (away.empty()) away = usage->reason;
    }
    // That an idle program's memory is away says nothing about the others.
    std::string reason() const { return !waits.empty() || !all_idle ? waits : away; }
};

ClientView view_of(const Attachment& a, const ResidencyUsage* usage) {
    const Client& client = *a.client;
    ClientView v{client.id,
                 client.pid,
                 client.uid,
                 client.command,
                 a.state,
                 a.slot.used(),
                 a.slot.untracked(),
                 a.page->launches.load(),
                 a.contexts,
                 a.mps,
                 client.since,
                 {},
                 a.page->work_ns.load(),
                 a.page->samples.load(),
                 a.page->busy_samples.load(),
                 a.page->awaited_samples.load()};
    if (usage) {
        const wire::ResidencyPage& page = *a.movable->page;
        v.movable = {*usage, page.moved_out.load(), page.moved_in.load(), page.dropped.load(), page.pinned.load()};
    }
    return v;
}

}  // namespace

GroupView Server::view_of(const Device& device, const GroupUsage& usage, const Group* group) {
    GroupView g{usage, {}, 0, 0, false, {}};
    const std::string& name = g.usage.spec.name;
    if (group) {
        g.settings = group->settings;
        g.made_by_client = group->made_by_client;
    }
    if (auto ledger = device.ledgers.find(name); ledger != device.ledgers.end()) {
        g.memory_used = ledger->second->used();
        g.untracked = ledger->second->untracked();
    }
    if (auto known = device.latencies.find(name); known != device.latencies.end()) {
        const auto& counts = known->second.counts();
        for (size_t i = 0; i < counts.size(); ++i)
            if (counts[i]) g.latencies.emplace_back(i, counts[i]);
        g.latency_sum = known->second.sum();
    }
    if (auto done = device.done.find(name); done != device.done.end()) g.done = done->second;
    return g;
}

ServerView Server::view_locked(bool listed) {
    std::lock_guard lock(mutex_);
    ServerView v{clock(), denied_, {}, {}, unmanaged()};
    for (auto& [name, group] : groups_) v.groups.push_back(group.settings);
    for (auto& device : devices_) {
        DeviceView d{device->uuid, device->index, device->policy, device->arbiter->ignored(), {}};
        d.capacity = device->capacity;
        d.held = device->residency.held();
        d.host_promised = device->residency.host_promised();
        d.context_estimate = device->contexts.least();
        // Once over the clients: with thousands of groups, a search for each group's would keep clients waiting.
        std::unordered_map<std::string_view, Members> members;
        const auto residency = residencies(*device, v.now);
        for (auto& [id, a] : device->attachments) {
            count(*device, *a);
            const auto known = residency.find(id);
            const ResidencyUsage* usage = a->movable && known != residency.end() ? &known->second : nullptr;
            Members& theirs = members[a->client->group];
            theirs.add(*a, usage);
            if (listed) theirs.listed.push_back(server::view_of(*a, usage));
        }
        for (const auto& [id, absent] : absent_) {
            if (absent.device.lock() != device) continue;
            Members& theirs = members[absent.group];
            ++theirs.expected;
            if (listed) theirs.awaited.push_back({absent.pid, absent.slot.used(), absent.contexts});
        }
        for (const GroupUsage& usage : device->arbiter->usage(v.now)) {
            const auto group = groups_.find(usage.spec.name);
            GroupView g = view_of(*device, usage, group == groups_.end() ? nullptr : &group->second);
            if (auto found = members.find(usage.spec.name); found != members.end()) {
                Members& theirs = found->second;
                g.programs = theirs.programs;
                g.expected = theirs.expected;
                g.swapped = theirs.swapped;
                g.awaits_memory = theirs.awaits_memory;
                g.memory_reason = theirs.reason();
                if (usage.spec.sm < 1) g.beside_mps = std::move(theirs.beside_mps);
                g.clients = std::move(theirs.listed);
                g.awaited = std::move(theirs.awaited);
            }
            d.groups.push_back(std::move(g));
        }
        v.devices.push_back(std::move(d));
    }
    return v;
}

std::vector<std::pair<pid_t, std::string>> Server::groups_by_pid() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<pid_t, std::string>> all;  // of one process the last counts
    for (const Unmanaged& entry : unmanaged_.entries())
        if (entry.limited) all.emplace_back(entry.pid, entry.group);
    for (const auto& [id, absent] : absent_) all.emplace_back(absent.pid, absent.group);
    for (const auto& [id, client] : clients_)
        if (!client->places.empty()) all.emplace_back(client->pid, client->group);
    return all;
}

}  // namespace gemlet::server
