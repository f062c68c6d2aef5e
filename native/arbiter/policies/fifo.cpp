// First come, first served, one base quota each; no shares, no limits. The baseline that a share policy has to beat.
#include <algorithm>

#include "arbiter/policies/policy.hpp"

namespace gemlet::arbiter {
namespace {

class Fifo final : public Policy {
  public:
    explicit Fifo(const Parameters& parameters) : quantum_(parameters.gemini_base_quota) {}

    const Group* pick(const Groups& waiting, Nanoseconds now) override {
        return *std::min_element(waiting.begin(), waiting.end(),
                                 [](const Group* a, const Group* b) { return a->waiting_since < b->waiting_since; });
    }

    Terms terms(const Turn& turn, const Groups& contenders, Nanoseconds now) override {
        if (contenders.empty()) return {};
        return {.deadline = turn.granted + quantum_, .contended = true};
    }

    bool by_arrival() const override { return true; }

  private:
    Nanoseconds quantum_;
};

}  // namespace

std::unique_ptr<Policy> make_fifo(const Parameters& parameters) {
    return std::make_unique<Fifo>(parameters);
}

}  // namespace gemlet::arbiter
