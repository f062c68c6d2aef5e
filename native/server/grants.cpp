// Writes the arbiter's decisions into the pages of the clients that they concern.
#include "server/server.hpp"

#include <algorithm>

#include "futex.h"

namespace gemlet::server {

using wire::TokenState;

namespace {

constexpr const char* kNames[] = {"grant", "update", "revoke", "park", "unpark"};

uint64_t wire_time(Nanoseconds t) {
    return t == kNever ? wire::kNever : uint64_t(t);
}

uint32_t short_time(Nanoseconds t) {
    return uint32_t(std::clamp<Nanoseconds>(t, 0, UINT32_MAX));
}

void set_terms(Attachment& a, const Action& action) {
    wire::ClientPage& page = *a.page;
    a.bounded = action.deadline != kNever;
    page.deadline_ns.store(wire_time(action.deadline), std::memory_order_relaxed);
    page.window_ns.store(uint64_t(action.window), std::memory_order_relaxed);
    page.idle_ns.store(short_time(action.idle), std::memory_order_relaxed);
    page.idle_most_ns.store(short_time(action.idle_most), std::memory_order_relaxed);
    page.poll_ns.store(short_time(action.poll), std::memory_order_relaxed);
    page.submissions.store(action.submissions, std::memory_order_relaxed);
    page.flags.store(action.shared ? wire::kPageShared : 0, std::memory_order_relaxed);
}

bool change(Attachment& a, TokenState from, TokenState to) {
    uint32_t word = wire::token_word(a.epoch, from);
    return a.page->token.compare_exchange_strong(word, wire::token_word(a.epoch, to));
}

}  // namespace

void Server::read_progress(Device& device, Attachment& a) {
    constexpr auto relaxed = std::memory_order_relaxed;
    if (!a.tied && a.page->tied.load(relaxed) != 0) {
        a.tied = true;
        gangs_.tie(a.client->group);
    }
    device.arbiter->progress(a.id, {.work = Nanoseconds(a.page->work_ns.load(relaxed)),
                                    .launches = a.page->launches.load(relaxed),
                                    .samples = a.page->samples.load(relaxed),
                                    .busy = a.page->busy_samples.load(relaxed),
                                    .awaited = a.page->awaited_samples.load(relaxed)});
}

void Server::read_progress(Device& device) {
    for (auto& [id, a] : device.attachments)
        if (a->holds || a->drains) read_progress(device, *a);
}

void Server::grant(Attachment& a, const Action& action) {
    set_terms(a, action);
    a.page->lead_ns.store(uint64_t(options_.lead), std::memory_order_relaxed);
    a.epoch = wire::next_epoch(a.epoch);
    a.page->token.store(wire::token_word(a.epoch, TokenState::kRun), std::memory_order_release);
    a.state = "runs";
    a.holds = true;
}

// What happens on one device may be news for gangs, and so for all devices.
void Server::apply(Device& device, Nanoseconds now) {
    constexpr int kRounds = 3;
    for (int round = 0; round < kRounds; ++round) {
        gangs_.settle(now);
        bool more = carry_out(device, now);
        if (gangs_.any())
            for (auto& other : devices_)
                if (other.get() != &device) more |= carry_out(*other, now);
        if (!more || !gangs_.any()) return;
    }
}

// Whether a client was faster than an order, which led to other decisions.
bool Server::carry_out(Device& device, Nanoseconds now) {
    bool faster = false;
    // took() below may lead to further actions; each list is short.
    for (auto actions = device.arbiter->take_actions(); !actions.empty(); actions = device.arbiter->take_actions()) {
        for (const Action& action : actions) {
            auto found = device.attachments.find(action.client);
            if (found == device.attachments.end()) continue;
            Attachment& a = *found->second;
            note(a, kNames[size_t(action.kind)], action.deadline == kNever ? -1 : action.deadline);
            switch (action.kind) {
                case Action::Kind::kGrant:
                    grant(a, action);
                    break;
                case Action::Kind::kUpdate:
                    set_terms(a, action);
                    break;
                case Action::Kind::kRevoke:
                    set_terms(a, action);
                    change(a, TokenState::kRun, TokenState::kRevoked);
                    a.state = "stops";
                    break;
                case Action::Kind::kPark:
                    // A client that takes it must not find the end of an earlier turn there.
                    a.page->deadline_ns.store(wire::kNever, std::memory_order_relaxed);
                    a.page->flags.store(action.raise ? wire::kPageRaise : 0, std::memory_order_relaxed);
                    // A new epoch, so that a request sent a moment ago does not count for the time after this.
                    a.epoch = wire::next_epoch(a.epoch);
                    a.page->token.store(wire::token_word(a.epoch, TokenState::kParked));
                    a.state = "idle";
                    break;
                case Action::Kind::kUnpark:
                    if (!change(a, TokenState::kParked, TokenState::kBlocked)) {
                        device.arbiter->took(a.id, now);  // it was faster; its own message is on its way
                        a.state = "runs";
                        a.holds = true;
                        faster = true;
                    }
                    break;
            }
            futex_wake_some(a.page->token);  // its watcher reads the new terms even if the word is the old one
        }
    }
    note_standings(device);
    return faster;
}

}  // namespace gemlet::server
