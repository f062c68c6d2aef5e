// The published Gemini policy, as a baseline: quotas from predicted bursts, selection by missing time in a sliding
// window, no early release. Reproduced with its weaknesses (docs/policies.md): the quota runs away under short
// pauses, and minima are lost as soon as clients return late.
//
// Differences: one predictor per group instead of one per process, fed by the turns the arbiter sees; a quota is
// never below a millisecond (the original hands out empty tokens for a maximum of 0); a maximum of 1 does not
// limit; the best group is searched for, because the original's comparison is not a strict order, without which
// sorting is undefined.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>

#include "arbiter/policies/gemini_predictor.hpp"
#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kMergeBursts = 2 * kMillisecond;
constexpr Nanoseconds kShortPause = 2 * kMillisecond;
constexpr double kSmoothing = 0.5;

class Gemini final : public Policy {
  public:
    explicit Gemini(const Parameters& parameters) : p_(parameters) {}

    void added(const Group& group, Nanoseconds) override {
        if (states_.size() <= group.slot) states_.resize(group.slot + 1);
        states_[group.slot] = State{.quota = p_.gemini_base_quota};
        std::erase_if(history_, [&](const Record& r) { return r.slot == group.slot; });
        if (token_out_ && holder_ == group.slot) token_out_ = false;
    }

    const Group* pick(const Groups& waiting, Nanoseconds now) override;
    Terms terms(const Turn& turn, const Groups&, Nanoseconds) override {
        return {.deadline = states_[turn.group->slot].expires, .contended = false};
    }
    void granted(const Turn& turn, Nanoseconds now) override;
    void stopped(const Turn& turn, StopReason reason, Nanoseconds now) override;

    Nanoseconds next_event(const Groups& waiting, Nanoseconds now) const override;
    std::string blocked(const Group& group, Nanoseconds now) const override;
    bool at_maximum(const Group& group, Nanoseconds now) override { return !blocked(group, now).empty(); }
    double target(const Group& group) const override { return group.spec.min; }
    bool may_park(const Group&, Nanoseconds) override { return false; }
    bool by_arrival() const override { return true; }
    // The next one is started when the quota is over, whether the holder has returned or not.
    Nanoseconds grace(const Parameters&) const override { return 0; }

  private:
    struct State {
        Nanoseconds quota;
        Nanoseconds expires = 0;
        GeminiPredictor bursts{kMergeBursts};
        GeminiPredictor pauses{0};
    };
    struct Record {
        size_t slot;
        Nanoseconds start, end;
    };

    bool reserved(Nanoseconds now) const { return token_out_ && now < states_[holder_].expires; }
    void forget_old(Nanoseconds now);
    std::vector<double> usage(Nanoseconds now) const;  // by slot, in the window; overlaps of k groups count 1/k each
    Nanoseconds next_quota(const Group& group, Nanoseconds now);

    Parameters p_;
    std::vector<State> states_;
    std::deque<Record> history_;
    bool token_out_ = false;  // the last token is neither returned nor (see reserved) over
    bool returned_ = false;   // its holder is done with it, but has not asked again
    size_t holder_ = 0;
};

void Gemini::forget_old(Nanoseconds now) {
    std::erase_if(history_, [&](const Record& r) { return r.end <= now - p_.gemini_window; });
}

std::vector<double> Gemini::usage(Nanoseconds now) const {
    struct Edge {
        Nanoseconds at;
        size_t slot;
        int step;
    };
    std::vector<Edge> edges;
    for (const Record& r : history_) {
        const Nanoseconds start = std::max(r.start, now - p_.gemini_window), end = std::min(r.end, now);
        if (end <= start) continue;
        edges.push_back({start, r.slot, +1});
        edges.push_back({end, r.slot, -1});
    }
    std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
    std::vector<double> used(states_.size(), 0.0);
    std::vector<int> open(states_.size(), 0);
    size_t groups = 0;
    for (size_t i = 0; i < edges.size(); ++i) {
        if (i > 0 && groups > 0) {
            const double part = static_cast<double>(edges[i].at - edges[i - 1].at) / static_cast<double>(groups);
            for (size_t slot = 0; slot < open.size(); ++slot) {
                if (open[slot] > 0) used[slot] += part;
            }
        }
        int& count = open[edges[i].slot];
        groups -= count > 0;
        count += edges[i].step;
        groups += count > 0;
    }
    return used;
}

const Group* Gemini::pick(const Groups& waiting, Nanoseconds now) {
    if (reserved(now)) {
        const auto same = std::find_if(waiting.begin(), waiting.end(), [&](auto* g) { return g->slot == holder_; });
        if (same == waiting.end()) return nullptr;
        if (!returned_) return *same;  // goes on with what is left of its token
    }
    forget_old(now);
    const Group* front = *std::min_element(waiting.begin(), waiting.end(),
                                           [](auto* a, auto* b) { return a->waiting_since < b->waiting_since; });
    if (std::none_of(history_.begin(), history_.end(), [&](auto& r) { return r.slot == front->slot; })) return front;

    const std::vector<double> used = usage(now);
    const double window = static_cast<double>(std::min(p_.gemini_window, std::max<Nanoseconds>(now, 1)));
    const auto before = [&](const Group* a, const Group* b) {
        const double missing_a = a->spec.min * window - used[a->slot];
        const double missing_b = b->spec.min * window - used[b->slot];
        if (missing_a > 0 && missing_b > 0) {
            return missing_a / (missing_a + used[a->slot]) > missing_b / (missing_b + used[b->slot]);
        }
        if (missing_a > 0 && missing_b < 0) return true;
        if (missing_a < 0 && missing_b > 0) return false;
        return used[a->slot] < used[b->slot];
    };
    const Group* best = nullptr;
    for (const Group* g : waiting) {
        if (g->spec.max < 1.0 && g->spec.max * window - used[g->slot] <= 0) continue;
        if (!best || before(g, best)) best = g;
    }
    return best;
}

Nanoseconds Gemini::next_quota(const Group& group, Nanoseconds now) {
    State& state = states_[group.slot];
    double burst = static_cast<double>(state.bursts.predict_merged(now));
    if (state.pauses.predict_merged(now) < kShortPause) burst *= 2;
    if (burst <= 0) return p_.gemini_base_quota;
    double quota = kSmoothing * burst + (1 - kSmoothing) * static_cast<double>(state.quota);
    quota = std::max(quota, static_cast<double>(p_.gemini_min_quota));
    quota = std::min(quota, group.spec.max * static_cast<double>(p_.gemini_window));
    return std::max(kMillisecond, static_cast<Nanoseconds>(quota));
}

void Gemini::granted(const Turn& turn, Nanoseconds now) {
    const size_t slot = turn.group->slot;
    State& state = states_[slot];
    state.pauses.record_stop(now);
    if (!reserved(now) || returned_ || holder_ != slot) {
        state.quota = next_quota(*turn.group, now);
        state.expires = now + state.quota;
        history_.push_back({slot, now, state.expires});
        token_out_ = true;
        returned_ = false;
        holder_ = slot;
    }
    state.bursts.record_start(now);
}

void Gemini::stopped(const Turn& turn, StopReason reason, Nanoseconds now) {
    const size_t slot = turn.group->slot;
    states_[slot].bursts.record_stop(now);
    states_[slot].pauses.record_start(now);
    if (reason == StopReason::kIdle || reason == StopReason::kExit) return;  // tokens are not given back, they lapse
    if (token_out_ && holder_ == slot) returned_ = true;
    for (auto record = history_.rbegin(); record != history_.rend(); ++record) {
        if (record->slot != slot) continue;
        record->end = now;  // earlier than the quota, or later by what was overused
        break;
    }
}

Nanoseconds Gemini::next_event(const Groups& waiting, Nanoseconds now) const {
    if (reserved(now)) return states_[holder_].expires;
    Nanoseconds next = kNever;
    for (const Record& r : history_) next = std::min(next, r.end + p_.gemini_window);
    return next;
}

std::string Gemini::blocked(const Group& group, Nanoseconds now) const {
    if (token_out_ && now < states_[holder_].expires) return {};
    const double window = static_cast<double>(std::min(p_.gemini_window, std::max<Nanoseconds>(now, 1)));
    if (usage(now)[group.slot] < group.spec.max * window) return {};
    char text[64];
    std::snprintf(text, sizeof text, "used its %g%% of the last %.0f s", 100.0 * group.spec.max,
                  static_cast<double>(p_.gemini_window) / 1e9);
    return text;
}

}  // namespace

std::unique_ptr<Policy> make_gemini(const Parameters& parameters) {
    return std::make_unique<Gemini>(parameters);
}

}  // namespace gemlet::arbiter
