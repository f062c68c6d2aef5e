// Something of which there is a limited number, shared so that nobody can take it all.
//
// One may take another only while more are free than it has, so one alone gets half, two get a third each, and there
// is always something left for the next one. A few are kept for administrators, who may take all there are.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace gemlet::server {

class Room {
  public:
    explicit Room(size_t places) : places_(places), kept_((places + 63) / 64) {}

    bool take(const std::string& who, bool administrator) {
        const size_t free = places_ - taken_;
        if (free == 0) return false;
        size_t& theirs = held_[who];
        if (!administrator && theirs + kept_ >= free) {
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
    size_t places() const { return places_; }

  private:
    size_t places_, kept_, taken_ = 0;
    std::unordered_map<std::string, size_t> held_;
};

// A place in a room, left when this is destroyed; the room outlives it.
class RoomPlace {
  public:
    RoomPlace() = default;
    RoomPlace(RoomPlace&& other) noexcept { *this = std::move(other); }
    RoomPlace& operator=(RoomPlace&& other) noexcept {
        std::swap(room_, other.room_);
        std::swap(who_, other.who_);
        return *this;
    }
    ~RoomPlace() {
        if (room_) room_->give(who_);
    }

    // Without a place if the room has none for them.
    static RoomPlace in(Room& room, const std::string& who, bool administrator) {
        RoomPlace place;
        if (!room.take(who, administrator)) return place;
        place.room_ = &room;
        place.who_ = who;
        return place;
    }
    explicit operator bool() const { return room_ != nullptr; }

  private:
    Room* room_ = nullptr;
    std::string who_;
};

}  // namespace gemlet::server
