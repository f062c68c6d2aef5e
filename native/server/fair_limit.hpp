// Something of which there is a limited number, shared so that nobody can take it all.
//
// One may take another only while more are free than it has, so one alone gets half, two get a third each, and there
// is always something left for the next one. Nobody may have more than `most`, for each that one has costs the others
// something. A few are kept for administrators, who may take all there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace gemlet::server {

class FairLimit {
  public:
    explicit FairLimit(size_t places, size_t most = SIZE_MAX)
        : places_(places), most_(most), kept_((places + 63) / 64) {}

    bool take(const std::string& who, bool administrator) {
        const size_t free = places_ - taken_;
        if (free == 0) return false;
        size_t& theirs = held_[who];
        if (!administrator && (theirs + kept_ >= free || theirs >= most_)) {
            if (theirs == 0) held_.erase(who);
            return false;
        }
        ++theirs;
        ++taken_;
        return true;
    }
    void give(const std::string& who) {
        auto found = held_.find(who);
        if (found == held_.end()) return;
        --taken_;
        if (--found->second == 0) held_.erase(found);
    }
    size_t held(const std::string& who) const {
        auto found = held_.find(who);
        return found == held_.end() ? 0 : found->second;
    }
    // How many there are for `who`, as far as that is why it gets no more.
    size_t places(const std::string& who) const { return held(who) >= most_ ? most_ : places_; }

  private:
    size_t places_, most_, kept_, taken_ = 0;
    std::unordered_map<std::string, size_t> held_;
};

// A place within a limit, given back when this is destroyed; the limit outlives it.
class FairPlace {
  public:
    FairPlace() = default;
    FairPlace(FairPlace&& other) noexcept { *this = std::move(other); }
    FairPlace& operator=(FairPlace&& other) noexcept {
        std::swap(limit_, other.limit_);
        std::swap(who_, other.who_);
        return *this;
    }
    ~FairPlace() {
        if (limit_) limit_->give(who_);
    }

    // Without a place if the limit leaves none for them.
    static FairPlace in(FairLimit& limit, const std::string& who, bool administrator) {
        FairPlace place;
        if (!limit.take(who, administrator)) return place;
        place.limit_ = &limit;
        place.who_ = who;
        return place;
    }
    explicit operator bool() const { return limit_ != nullptr; }

  private:
    FairLimit* limit_ = nullptr;
    std::string who_;
};

}  // namespace gemlet::server
