// What a context takes on one device, by whose programs showed it. Pure.
//
// A client says how many contexts it has and what it has allocated, and the driver how much that is in all; so a
// client that lies decides what a context seems to take. What it shows counts for its own user. What administrators
// show counts for everybody.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace gemlet::server {

class ContextSizes {
  public:
    // `mps`: clients of MPS have smaller ones.
    void learn(const std::string& who, bool administrator, bool mps, uint64_t bytes) {
        if (bytes > 0) lower(bytes_[{administrator ? kEverybody : who, mps}], bytes);
    }
    // The least that counts for `who`. 0: not known.
    uint64_t known_to(const std::string& who, bool mps) const {
        uint64_t least = 0;
        for (const auto& name : {who, std::string(kEverybody)})
            if (const auto found = bytes_.find({name, mps}); found != bytes_.end()) lower(least, found->second);
        return least;
    }
    // For people, who get no promise of it.
    uint64_t least() const {
        uint64_t least = 0;
        for (const auto& [key, bytes] : bytes_) lower(least, bytes);
        return least;
    }
    void forget(const std::string& who) {
        for (const bool mps : {false, true}) bytes_.erase({who, mps});
    }

  private:
    static constexpr const char* kEverybody = "";
    static void lower(uint64_t& least, uint64_t bytes) { least = least == 0 ? bytes : std::min(least, bytes); }
    std::map<std::pair<std::string, bool>, uint64_t> bytes_;
};

}  // namespace gemlet::server
