#include "arbiter/pairs.hpp"

#include <algorithm>

namespace gemlet::arbiter {
namespace {

constexpr unsigned kTurnsAlone = 3;  // of each, before their speed alone is believed
constexpr unsigned kTooShort = 5;    // turns in a row, and a group is left alone: waiting for it costs
constexpr unsigned kTrials = 100;    // that may end before enough was seen, because one had nothing more to do
constexpr double kSlack = 0.97;      // of the share in turns: what measuring is off by
constexpr double kUnhurt = 0.95;     // who is hurried keeps at least so much of its speed
constexpr double kHurt = 0.8;        // ... and less than this is believed at once
constexpr double kSteady = 0.9;      // of its speed alone anybody has, when it is alone
constexpr int64_t kWary = 5;         // times as long as usual
constexpr double kMore = 1.25;       // times what it does alone: it is another program by now

}  // namespace

double Pairs::Alone::rate() const {
    if (turns < kTurnsAlone) return 0.0;
    auto sorted = rates;
    const auto end = sorted.begin() + std::min<std::ptrdiff_t>(turns, std::ssize(sorted));
    std::sort(sorted.begin(), end);
    return sorted[static_cast<size_t>(end - sorted.begin()) / 2];
}

Pairs::Pair& Pairs::pair_of(const Member& a, const Member& b, Nanoseconds now) {
    const auto [found, made] = pairs_.try_emplace(key(a.group, b.group));
    Pair& pair = found->second;
    if (!made) return pair;
    pair.since = now;
    const bool unknown = a.workload == Workload::kUnknown || b.workload == Workload::kUnknown;
    const bool wary = this->wary(a.group, now) || this->wary(b.group, now);
    if (a.hurried || b.hurried || unknown) {
        for (const GroupId group : {a.group, b.group})
            alone_[group].wanted = std::max(alone_[group].wanted, kTurnsAlone);
        return pair;
    }
    pair.state = a.workload == b.workload || wary ? PairState::kApart : PairState::kTogether;
    pair.patience = p_.pair_again;
    pair.try_again = now + pair.patience;
    return pair;
}

void Pairs::become(Pair& pair, PairState state, const Key& key, Nanoseconds now) {
    if (state == PairState::kUnknown) {
        pair.trials = 0;
        Alone &alone_a = alone_[key.first], &alone_b = alone_[key.second];
        pair.turns_a = alone_a.turns;
        pair.turns_b = alone_b.turns;
        alone_a.wanted = alone_a.turns + kTurnsAlone;
        alone_b.wanted = alone_b.turns + kTurnsAlone;
    }
    if (pair.state != state) pair.since = now;
    pair.done_a = pair.done_b = {0, 0};
    pair.whole_a = pair.whole_b = {};
    pair.state = state;
}

Nanoseconds Pairs::together_for(const Member& a, const Member& b, Nanoseconds now) {
    Pair& pair = pair_of(a, b, now);
    const Key k = key(a.group, b.group);
    // What is alone today may not be tomorrow: programs change.
    const bool stale = pair.state == PairState::kTogether && now - pair.since >= p_.pair_refresh;
    const bool retry = pair.state == PairState::kApart && now >= pair.try_again;
    if (stale || retry) become(pair, PairState::kUnknown, k, now);
    if (pair.state == PairState::kTogether) return p_.pair_turn;
    const bool known = knows(k.first, pair.turns_a, now) && knows(k.second, pair.turns_b, now);
    const bool dared = pair.speed_a > 0.0 || (!wary(a.group, now) && !wary(b.group, now));
    if (pair.state != PairState::kUnknown || !known || !dared) return 0;
    if (++pair.trials <= kTrials) return a.hurried || b.hurried ? kRequests * p_.pair_trial : p_.pair_trial;
    wait(pair, k, now);
    return 0;
}

void Pairs::wait(Pair& pair, const Key& key, Nanoseconds now) {
    pair.patience = std::clamp(2 * pair.patience, p_.pair_again, 30 * p_.pair_again);
    pair.try_again = now + pair.patience;
    become(pair, PairState::kApart, key, now);
}

void Pairs::ran_short(GroupId group, Nanoseconds now) {
    Alone& alone = alone_[group];
    if (++alone.too_short < kTooShort) return;
    alone.too_short = 0;
    alone.wanted = 0;
    for (auto& [key, pair] : pairs_) {
        if (pair.state == PairState::kUnknown && (key.first == group || key.second == group)) wait(pair, key, now);
    }
}

void Pairs::ran_alone(GroupId group, double rate, Nanoseconds now) {
    Alone& alone = alone_[group];
    alone.at = now;
    alone.too_short = 0;
    alone.rates[alone.turns++ % alone.rates.size()] = rate;
}

void Pairs::ran_together(const Member& a, Done done_a, const Member& b, Done done_b, Nanoseconds now) {
    if (a.group > b.group) return ran_together(b, done_b, a, done_a, now);
    Pair& pair = pair_of(a, b, now);
    const Key k = key(a.group, b.group);
    const auto add = [](Done& sum, Done more) { sum = {sum.work + more.work, sum.time + more.time}; };
    add(pair.done_a, done_a);
    add(pair.done_b, done_b);
    const Nanoseconds seen = std::min(pair.done_a.time, pair.done_b.time);
    if (seen < p_.pair_trial / 2) return;
    const auto speed = [&](GroupId group, Done done) {
        const double alone = alone_[group].rate();
        const double rate = static_cast<double>(done.work) / static_cast<double>(done.time);
        return std::min(1.0, alone > 0.0 ? rate / alone : rate);  // more is a measurement gone wrong
    };
    pair.speed_a = speed(a.group, pair.done_a);
    pair.speed_b = speed(b.group, pair.done_b);
    // Unless it is clear that the requests suffer.
    const bool clear = (a.hurried && pair.speed_a < kHurt) || (b.hurried && pair.speed_b < kHurt);
    if ((a.hurried || b.hurried) && !clear && seen < kRequests * p_.pair_trial / 2) return;
    pair.done_a = pair.done_b = {0, 0};
    // Side by side must be better for both than taking turns, or somebody's minimum would pay for the other's gain.
    const bool good =
        pair.speed_a + pair.speed_b >= p_.pair_gain && enough(pair.speed_a, a) && enough(pair.speed_b, b);
    if (good) {
        // A good trial alone does not make up for turns that were not: it may be good at trials only.
        if (pair.state == PairState::kTogether && now - pair.since >= p_.pair_refresh / 2) pair.patience = 0;
        become(pair, PairState::kTogether, k, now);
        return;
    }
    wait(pair, k, now);
}

bool Pairs::enough(double speed, const Member& member) {
    return speed >= kSlack * member.share && (!member.hurried || speed >= kUnhurt);
}

// Adds a turn to `sum`: they are short where many take them, so several are judged together.
bool Pairs::fell_short(GroupId group, bool hurried, Turn& sum, const Turn& turn, Nanoseconds now) {
    sum = {sum.work + turn.work, sum.apart + turn.apart, sum.beside + turn.beside, sum.due + turn.due};
    if (sum.beside < p_.pair_trial / 2) return false;
    Alone& alone = alone_[group];
    const double rate = alone.rate() > 0.0 ? alone.rate() : 1.0;
    const auto work = static_cast<double>(sum.work), beside = static_cast<double>(sum.beside);
    const auto less_than = [&](double part) {
        return work < rate * (kSteady * static_cast<double>(sum.apart) + part * beside);
    };
    bool fell = less_than(hurried ? kHurt : kSlack * static_cast<double>(sum.due) / beside);
    // Requests differ: unless it is clear that they suffer, it takes more of them.
    if (!fell && hurried && sum.beside < kRequests * p_.pair_trial / 2) return false;
    fell |= hurried && less_than(kUnhurt);
    // What it did alone is not what it would do now.
    if (now - alone.at >= p_.pair_again && work > kMore * rate * (static_cast<double>(sum.apart) + beside)) {
        alone.turns = 0;
        alone.wanted = kTurnsAlone;
    }
    sum = {};
    return fell;
}

bool Pairs::lost(const Member& a, const Member& b, const Turn& turn, bool was_left, Nanoseconds now) {
    const Key k = key(a.group, b.group);
    const auto found = pairs_.find(k);
    if (found == pairs_.end() || found->second.state == PairState::kApart) return false;
    Pair& pair = found->second;
    if (!fell_short(a.group, a.hurried, a.group < b.group ? pair.whole_a : pair.whole_b, turn, now)) return false;
    // Or it would be good for a trial, and then come and go again.
    if (was_left) pair.patience = std::max(pair.patience, kWary * p_.pair_again);
    if (pair.state == PairState::kTogether) beside_[a.group].wary.lose(p_, now);
    wait(pair, k, now);
    return true;
}

bool Pairs::lost_in_company(GroupId group, bool hurried, const Turn& turn, Nanoseconds now) {
    Beside& beside = beside_[group];
    const bool fell = fell_short(group, hurried, beside.turns, turn, now);
    if (fell) beside.company.lose(p_, now);
    return fell;
}

// Who is worse off ever again waits ever longer.
void Pairs::Patience::lose(const Parameters& p, Nanoseconds now) {
    if (now - again >= p.pair_refresh / 2) last = 0;
    last = std::clamp(2 * last, p.pair_again, 30 * p.pair_again);
    again = now + last;
}

bool Pairs::may_have_company(GroupId group, Nanoseconds now) const {
    const auto found = beside_.find(group);
    return found == beside_.end() || now >= found->second.company.again;
}

bool Pairs::wary(GroupId group, Nanoseconds now) const {
    const auto found = beside_.find(group);
    return found != beside_.end() && now < found->second.wary.again;
}

// Beside others turns alone are rare: those of before do, but programs change.
bool Pairs::fresh(const Alone& alone, Nanoseconds now) const {
    return alone.turns >= kTurnsAlone && now - alone.at < p_.pair_refresh;
}

bool Pairs::knows(GroupId group, unsigned since, Nanoseconds now) const {
    const auto found = alone_.find(group);
    return found != alone_.end() && (found->second.turns >= since + kTurnsAlone || fresh(found->second, now));
}

bool Pairs::curious(GroupId group, Nanoseconds now) const {
    const auto alone = alone_.find(group);
    return alone != alone_.end() && alone->second.turns < alone->second.wanted && !fresh(alone->second, now);
}

bool Pairs::untried(GroupId a, GroupId b) const {
    const auto found = pairs_.find(key(a, b));
    return found == pairs_.end() || found->second.state == PairState::kUnknown;
}

bool Pairs::together(GroupId a, GroupId b) const {
    const auto found = pairs_.find(key(a, b));
    return found != pairs_.end() && found->second.state == PairState::kTogether;
}

void Pairs::forget(GroupId group) {
    alone_.erase(group);
    beside_.erase(group);
    std::erase_if(pairs_,
                  [&](const auto& entry) { return entry.first.first == group || entry.first.second == group; });
}

std::vector<PairUsage> Pairs::view() const {
    std::vector<PairUsage> result;
    for (const auto& [key, pair] : pairs_)
        result.push_back({key.first, key.second, pair.state, pair.speed_a, pair.speed_b});
    return result;
}

}  // namespace gemlet::arbiter
