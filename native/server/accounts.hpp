// Whose programs those of a uid are, where users are counted: those of a subordinate uid (/etc/subuid) are its
// user's, who may have thousands of such uids. What a program may do goes by its own uid. Pure.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace gemlet::server {

struct UidRange {
    uid_t first, last, account;
};

class Accounts {
  public:
    Accounts() = default;
    // `ranges`: in order, and none within another.
    explicit Accounts(std::vector<UidRange> ranges) : ranges_(std::move(ranges)) {}

    uid_t of(uid_t uid) const {
        const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), uid,
                                            [](uid_t wanted, const UidRange& range) { return wanted < range.first; });
        if (after == ranges_.begin()) return uid;
        const UidRange& range = *std::prev(after);
        return uid <= range.last ? range.account : uid;
    }

  private:
    std::vector<UidRange> ranges_;
};

}  // namespace gemlet::server
