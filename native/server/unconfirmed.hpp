// What a client claims to hold on a device and the driver does not confirm. Pure.
//
// A claim comes before the memory does: a client reserves, and allocates then. So it is believed for a while, and
// what the driver's account still lacks after that counts for nothing, until the driver has it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "arbiter/arbiter.hpp"

namespace gemlet::server {

class Unconfirmed {
  public:
    // `claimed`: in all, now. `confirmed`: of it the driver's account has no more than that. `waits`: for room, so
    // that it cannot have allocated yet; its time begins when it does not wait any more.
    void look(uint64_t claimed, uint64_t confirmed, bool waits, arbiter::Nanoseconds grace,
              arbiter::Nanoseconds now) {
        const uint64_t standing = std::min(claimed, claimed_);  // before the driver was asked, and still
        claimed_ = claimed;
        const uint64_t excess = standing - std::min(standing, confirmed);
        least_ = std::min(least_, excess);
        bytes_ = std::min(bytes_, excess);
        const bool waited = waits_;
        waits_ = waits;
        if (excess == 0 || (waited && !waits)) return begin(now);
        if (now - since_ < (waits ? kPatience : 1) * grace) return;
        bytes_ = std::max(bytes_, least_);
        begin(now);
    }
    uint64_t bytes() const { return bytes_; }

  private:
    static constexpr arbiter::Nanoseconds kPatience = 12;  // graces: others' memory may take as long to leave
    void begin(arbiter::Nanoseconds now) {
        since_ = now;
        least_ = UINT64_MAX;
    }

    uint64_t claimed_ = 0;
    uint64_t least_ = UINT64_MAX;  // excess since `since_`
    uint64_t bytes_ = 0;
    arbiter::Nanoseconds since_ = 0;
    bool waits_ = false;
};

}  // namespace gemlet::server
