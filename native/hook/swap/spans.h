// Parts of a chunk: sets of bytes as sorted spans that neither overlap nor touch. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gemlet::hook {

struct Span {
    uint64_t begin, end;
    bool operator==(const Span&) const = default;
};

// Appends to a list of spans in ascending order; a hole of up to `gap` bytes before it is closed.
inline void append(std::vector<Span>& list, Span span, uint64_t gap = 0) {
    if (!list.empty() && span.begin <= list.back().end + gap)
        list.back().end = std::max(list.back().end, span.end);
    else
        list.push_back(span);
}

inline uint64_t bytes_of(const std::vector<Span>& list) {
    uint64_t sum = 0;
    for (const Span& span : list) sum += span.end - span.begin;
    return sum;
}

class Spans {
  public:
    void add(uint64_t begin, uint64_t end) {
        if (begin >= end) return;
        // The first that it touches, and the first behind it that it does not.
        auto first = std::lower_bound(list_.begin(), list_.end(), begin,
                                      [](const Span& s, uint64_t at) { return s.end < at; });
        auto last = first;
        for (; last != list_.end() && last->begin <= end; ++last) {
            begin = std::min(begin, last->begin);
            end = std::max(end, last->end);
        }
        list_.insert(list_.erase(first, last), {begin, end});
    }

    // The parts of [begin, end) that are not in it.
    std::vector<Span> without(uint64_t begin, uint64_t end) const {
        std::vector<Span> rest;
        auto next = std::upper_bound(list_.begin(), list_.end(), begin,
                                     [](uint64_t at, const Span& s) { return at < s.end; });
        for (; next != list_.end() && next->begin < end; ++next) {
            if (begin < next->begin) rest.push_back({begin, next->begin});
            begin = next->end;
        }
        if (begin < end) rest.push_back({begin, end});
        return rest;
    }
    bool covers(uint64_t begin, uint64_t end) const { return without(begin, end).empty(); }
    bool touches(uint64_t begin, uint64_t end) const {
        return without(begin, end) != std::vector<Span>{{begin, end}};
    }
    bool empty() const { return list_.empty(); }
    void clear() { list_.clear(); }
    uint64_t bytes() const { return bytes_of(list_); }

  private:
    std::vector<Span> list_;
};

}  // namespace gemlet::hook
