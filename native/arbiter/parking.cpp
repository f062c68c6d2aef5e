// Tokens that nobody else wants are parked with their clients, who may take them without asking; and taken away
// again.
#include "arbiter/arbiter_state.hpp"

#include <utility>

namespace gemlet::arbiter {

// Takes parked tokens away until what runs and what is parked fit together. Who may interrupt this hold keeps its
// own.
void Arbiter::State::make_room(const Hold& hold, Nanoseconds now) {
    for (Client* client : parked) client->by_right = policy->may_interrupt(*client->group, *hold.group, now);
    const double occupied = holds.occupied();
    for (size_t i = 0; i < parked.size() && occupied + parked_sm() > kFull;) {
        Client& client = *parked[i];
        if (client.by_right) {
            ++i;
            continue;
        }
        take_parked(client, hold.serial, now);
    }
}

// Its spec is new: whose token is parked beside those who run may not be in the right any more.
void Arbiter::State::keep_rights(const Group& group, Nanoseconds now) {
    const auto all = parked;
    for (Client* client : all) {
        if (client->group == &group && client->by_right && !by_right(group, now))
            take_parked(*client, holds.next_serial(), now);
    }
}

void Arbiter::State::take_parked(Client& client, uint64_t unparked_for, Nanoseconds now) {
    unpark(client);
    client.unparked_for = unparked_for;
    client.unparked_at = now;
    actions.push_back({.kind = Action::Kind::kUnpark, .client = client.id});
}

// A grant that was given for a token which was taken at the same moment.
void Arbiter::State::take_back(Hold& hold, Nanoseconds now) {
    Client& client = *hold.client;
    actions.push_back({Action::Kind::kRevoke, client.id, now, hold.window, true});
    policy->stopped(hold.turn(), StopReason::kRevoked, now);
    holds.stop(hold, 0, now);
    holds.finish(*holds.newest(&client), now, now);
    client.waiting = true;
    recount(*client.group);
}

// Whether a parked client of `group` may interrupt all who run.
bool Arbiter::State::by_right(const Group& group, Nanoseconds now) const {
    const auto& all = holds.all();
    return std::all_of(all.begin(), all.end(), [&](const Hold& hold) {
        return !hold.occupies() || policy->may_interrupt(group, *hold.group, now);
    });
}

bool Arbiter::State::unpark(Client& client) {
    return std::erase(parked, &client) > 0;
}

// Of those that hold theirs by right nothing is reserved: they will overlap with a holder, who stops.
double Arbiter::State::parked_sm() const {
    double sum = 0.0;
    for (const Client* client : parked) sum += client->by_right ? 0.0 : client->sm;
    return sum;
}

void Arbiter::State::park_or_not(Nanoseconds now) {
    Client* client = std::exchange(idle, nullptr);
    if (!client || client->waiting || holds.running(client) || !policy->may_park(*client->group, now)) return;
    client->by_right = false;
    if (holds.occupied() + parked_sm() + client->sm > kFull) {
        client->by_right = by_right(*client->group, now);
        if (!client->by_right || holds.occupied() == 0.0) return;
    }
    parked.push_back(client);
    actions.push_back({.kind = Action::Kind::kPark, .client = client->id});
}

}  // namespace gemlet::arbiter
