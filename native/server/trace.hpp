// The last steps of all clients, for `gemlet trace` and timelines. A ring: to record costs the same whether anybody
// reads or not, and what is overwritten is counted.
#pragma once

#include <sys/types.h>
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
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

    struct Part {
        uint64_t first;  // number of the first of `steps`; later than asked for by as many as are overwritten
        std::vector<Step> steps;
    };

    explicit Trace(size_t room) : room_(room) {}

    void add(const Step& step) {
        if (room_ == 0) return;
        if (steps_.size() < room_)
            steps_.push_back(step);
        else
            steps_[end_ % room_] = step;
        ++end_;
    }
    // Steps numbered `from` and later, oldest first, `most` of them.
    Part read(uint64_t from, size_t most) const {
        Part part{std::clamp(from, end_ - steps_.size(), end_), {}};
        const uint64_t end = std::min<uint64_t>(end_, part.first + most);
        part.steps.reserve(end - part.first);
        for (uint64_t n = part.first; n < end; ++n) part.steps.push_back(steps_[n % room_]);
        return part;
    }
    // The number of the first step at `at` or later; they are in order of time.
    uint64_t number_at(arbiter::Nanoseconds at) const {
        uint64_t low = end_ - steps_.size(), high = end_;
        while (low < high) {
            const uint64_t middle = low + (high - low) / 2;
            if (steps_[middle % room_].at < at)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
    bool forgot_since(arbiter::Nanoseconds at) const { return end_ > steps_.size() && steps_[end_ % room_].at > at; }

    void left(Traced client) {
        if (room_ == 0) return;
        if (gone_.size() == kGone) gone_.pop_front();
        gone_.push_back(std::move(client));
    }
    const std::deque<Traced>& gone() const { return gone_; }

  private:
    size_t room_;
    uint64_t end_ = 0;  // number of the next step
    std::vector<Step> steps_;
    std::deque<Traced> gone_;
};

}  // namespace gemlet::server
