// Tokens that nobody else wants are parked with their clients, who may take them without asking; and taken away
// again.
#include "arbiter/arbiter_state.hpp"

#include <utility>

namespace gemlet::arbiter {
namespace {

// Others stop for it before the order comes.
bool raises(const Client& client) {
    return client.exclusive() && client.group->spec.priority == Priority::kLatency;
}

}  // namespace

// Takes parked tokens away from clients that may not run beside this one. A client that may interrupt it keeps its
// token.
void Arbiter::State::make_room(const Lease& lease, Nanoseconds now) {
    for (Client* client : parked)
        client->by_right = client->exclusive() && policy->may_interrupt(*client->group, *lease.group, now);
    unpark_in_the_way(lease.serial, now);
}

// Takes the tokens away that may no longer be parked beside clients that run and other parked tokens.
void Arbiter::State::unpark_in_the_way(uint64_t serial, Nanoseconds now) {
    for (size_t i = 0; i < parked.size();) {
        Client& client = *parked[i];
        if (client.by_right || parks_beside(client))
            ++i;
        else
            take_parked(client, serial, now);
    }
}

bool Arbiter::State::parks_beside(const Client& client) const {
    return in_its_way(client, true) + client.sm <= kFull;
}

// Its spec is new, so a token that is parked beside running clients may no longer be permitted.
void Arbiter::State::keep_rights(const Group& group, Nanoseconds now) {
    const auto all = parked;
    for (Client* client : all) {
        if (client->group == &group && client->by_right && !by_right(*client, now))
            take_parked(*client, leases.next_serial(), now);
    }
}

void Arbiter::State::take_parked(Client& client, uint64_t unparked_for, Nanoseconds now) {
    unpark(client);
    client.unparked_for = unparked_for;
    client.unparked_at = now;
    actions.push_back({.kind = Action::Kind::kUnpark, .client = client.id});
}

// A grant that was given for a token which was taken at the same moment.
void Arbiter::State::take_back(Lease& lease, Nanoseconds now) {
    Client& client = *lease.client;
    actions.push_back(
        {.kind = Action::Kind::kRevoke, .client = client.id, .deadline = now, .window = lease.conditions.window});
    policy->stopped(lease.turn(), StopReason::kRevoked, now);
    leases.stop(lease, 0, now);
    leases.finish(*leases.newest(&client), now, now);
    client.waiting = true;
    recount(*client.group);
}

// Whether it may interrupt all who run.
bool Arbiter::State::by_right(const Client& client, Nanoseconds now) const {
    const auto& all = leases.all();
    return client.exclusive() && std::all_of(all.begin(), all.end(), [&](const Lease& lease) {
               return !lease.in_the_way() || policy->may_interrupt(*client.group, *lease.group, now);
           });
}

bool Arbiter::State::unpark(Client& client) {
    return std::erase(parked, &client) > 0;
}

void Arbiter::State::park_or_not(Nanoseconds now) {
    Client* client = std::exchange(idle, nullptr);
    if (!client || client->group->planned > 0.0 || client->waiting || leases.running(client) ||
        !policy->may_park(*client->group, now))
        return;
    client->by_right = false;
    if (!parks_beside(*client)) {
        client->by_right = by_right(*client, now);
        if (!client->by_right || leases.occupied() == 0.0) return;
    }
    parked.push_back(client);
    actions.push_back({.kind = Action::Kind::kPark, .client = client->id, .raise = raises(*client)});
}

}  // namespace gemlet::arbiter
