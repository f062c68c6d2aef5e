// The last steps of all clients, for `gemlet trace` and timelines. To record costs the same whether anybody reads or
// not, and what is forgotten is known.
//
// The oldest go first, but each user keeps an equal part of half the room: who makes steps without end pushes out his
// own.
#pragma once

#include <sys/types.h>
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arbiter/arbiter.hpp"

namespace gemlet::server {

// One step of one client. `value`: ns of the clock for a deadline (-1: none) and for the end of a drain, ns for a
// tail, a request's duration; bytes for memory; for "standing" the old Why, times 16, and the new one.
struct Step {
    arbiter::Nanoseconds at;
    arbiter::ClientId client;
    const char* what;
    int64_t value;
};

// Whose steps they are.
struct Traced {
    arbiter::ClientId client;
    pid_t pid;
    uid_t uid;
    std::string command, group;
    int device;
    const char* state;  // "gone" for one that left
    arbiter::Why why;
};

class Trace {
  public:
    static constexpr size_t kGone = 1024;  // clients that left and are still known by name
    static constexpr size_t kUsers = 256;  // that are told apart

    struct Part {
        std::vector<Step> steps;
        uint64_t next;  // number of the step after the last of them
        bool lost;      // some of those asked for are forgotten
    };

    explicit Trace(size_t room) : room_(room) {}

    void add(const std::string& who, const Step& step) {
        if (room_ == 0) return;
        user(who).steps.push_back({end_++, step});
        if (++held_ > room_) forget_one();
    }
    // Steps numbered `from` and later, oldest first, `most` of them.
    Part read(uint64_t from, size_t most) const {
        from = std::min(from, end_);
        Part part{{}, end_, false};
        using Next = std::pair<uint64_t, std::pair<const User*, size_t>>;  // its number; whose, and which
        std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
        for (const auto& [who, user] : users_) {
            const size_t at = user.first([&](const Numbered& step) { return step.number < from; });
            if (at < user.steps.size()) next.push({user.steps[at].number, {&user, at}});
        }
        uint64_t expected = from;
        for (; !next.empty(); ++expected) {
            const auto [number, place] = next.top();
            if (part.steps.size() == most) {
                part.next = number;
                break;
            }
            next.pop();
            part.lost = part.lost || number != expected;
            expected = number;
            const auto [user, at] = place;
            part.steps.push_back(user->steps[at].step);
            if (at + 1 < user->steps.size()) next.push({user->steps[at + 1].number, {user, at + 1}});
        }
        part.lost = part.lost || (most > 0 && expected != part.next);
        return part;
    }
    // The number of the first step at `at` or later; they are in order of time.
    uint64_t number_at(arbiter::Nanoseconds at) const {
        uint64_t number = end_;
        for (const auto& [who, user] : users_) {
            const size_t first = user.first([&](const Numbered& each) { return each.step.at < at; });
            if (first < user.steps.size()) number = std::min(number, user.steps[first].number);
        }
        return number;
    }
    bool forgot_since(arbiter::Nanoseconds at) const { return forgotten_ >= at; }

    void left(const std::string& who, Traced client) {
        if (room_ == 0) return;
        user(who).gone.push_back(std::move(client));
        if (++gone_ <= kGone) return;
        const auto most = std::max_element(users_.begin(), users_.end(), [](const auto& a, const auto& b) {
            return a.second.gone.size() < b.second.gone.size();
        });
        most->second.gone.pop_front();
        --gone_;
    }
    std::vector<Traced> gone() const {
        std::vector<Traced> all;
        for (const auto& [who, user] : users_) all.insert(all.end(), user.gone.begin(), user.gone.end());
        return all;
    }

  private:
    struct Numbered {
        uint64_t number;
        Step step;
    };
    struct User {
        std::deque<Numbered> steps;
        std::deque<Traced> gone;

        template <class Before>
        size_t first(Before before) const {
            return size_t(std::partition_point(steps.begin(), steps.end(), before) - steps.begin());
        }
    };

    User& user(const std::string& who) {
        if (auto known = users_.find(who); known != users_.end()) return known->second;
        if (users_.size() == kUsers) {
            const auto last = [](const auto& entry) {
                return entry.second.steps.empty() ? 0 : entry.second.steps.back().number;
            };
            const auto oldest = std::min_element(users_.begin(), users_.end(),
                                                 [&](const auto& a, const auto& b) { return last(a) < last(b); });
            for (const Numbered& each : oldest->second.steps) forgotten_ = std::max(forgotten_, each.step.at);
            held_ -= oldest->second.steps.size();
            gone_ -= oldest->second.gone.size();
            users_.erase(oldest);
        }
        return users_[who];
    }

    void forget_one() {
        const size_t kept = room_ / (2 * users_.size());
        User* oldest = nullptr;
        for (auto& [who, user] : users_)
            if (user.steps.size() > kept && (!oldest || user.steps.front().number < oldest->steps.front().number))
                oldest = &user;
        forgotten_ = std::max(forgotten_, oldest->steps.front().step.at);
        oldest->steps.pop_front();
        --held_;
    }

    size_t room_, held_ = 0, gone_ = 0;
    uint64_t end_ = 0;                                                                   // number of the next step
    arbiter::Nanoseconds forgotten_ = std::numeric_limits<arbiter::Nanoseconds>::min();  // when the last of them was
    std::unordered_map<std::string, User> users_;
};

}  // namespace gemlet::server
