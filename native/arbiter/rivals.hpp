// Whether some client of another group takes turns with a given one, without a look at each: of those that are alike
// in that, the one that needs most multiprocessors decides.
#pragma once

#include <algorithm>
#include <array>

#include "arbiter/client.hpp"
#include "arbiter/leases.hpp"

namespace gemlet::arbiter {

class Rivals {
  public:
    void add(const Client& client) {
        Widest& widest = widest_[kind_of(client.why())];
        if (widest.group == client.group) {
            widest.sm = std::max(widest.sm, client.sm);
        } else if (client.sm > widest.sm) {
            widest = {client.group, client.sm, widest.sm};
        } else {
            widest.of_others = std::max(widest.of_others, client.sm);
        }
    }

    // `why` it does not share, as far as that counts here.
    bool has_one_against(const Client& client, Why why) const {
        for (size_t kind = 0; kind < kKinds.size(); ++kind) {
            const Widest& widest = widest_[kind];
            const double sm = widest.group == client.group ? widest.of_others : widest.sm;
            if (!compatible(kKinds[kind], why) && sm + client.sm > kFull) return true;
        }
        return false;
    }

  private:
    // One of each that compatible() tells apart.
    static constexpr std::array kKinds = {Why::kShares, Why::kBothBusy, Why::kAlways};
    static constexpr size_t kind_of(Why why) { return why == Why::kShares ? 0 : why == Why::kBothBusy ? 1 : 2; }

    struct Widest {
        const Members* group = nullptr;
        double sm = 0.0, of_others = 0.0;  // of the group's clients; of those of all others
    };
    std::array<Widest, kKinds.size()> widest_;
};

}  // namespace gemlet::arbiter
