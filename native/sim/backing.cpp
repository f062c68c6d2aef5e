#include "backing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

namespace gemlet::sim {
namespace {

constexpr uint64_t kArenaBytes = 1ull << 44;  // sparse: more than all devices together ever have
constexpr uint64_t kArenaUnit = 2u << 20;

class Arena {
  public:
    static Arena& get() {
        static auto* arena = new Arena;
        return *arena;
    }
    int fd() const { return fd_; }

    bool take(uint64_t bytes, uint64_t& offset) {
        const std::lock_guard guard(mutex_);
        for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
            if (hole->second < bytes) continue;
            offset = hole->first;
            const uint64_t rest = hole->second - bytes;
            holes_.erase(hole);
            if (rest > 0) holes_[offset + bytes] = rest;
            return true;
        }
        return false;
    }

    void give(uint64_t offset, uint64_t bytes) {
        fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
        const std::lock_guard guard(mutex_);
        auto next = holes_.lower_bound(offset);
        if (next != holes_.end() && offset + bytes == next->first) {
            bytes += next->second;
            next = holes_.erase(next);
        }
        if (next != holes_.begin()) {
            auto before = std::prev(next);
            if (before->first + before->second == offset) {
                before->second += bytes;
                return;
            }
        }
        holes_[offset] = bytes;
    }

  private:
    Arena() : fd_(memfd_create("gemlet-sim-device-memory", MFD_CLOEXEC)) {
        if (fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(kArenaBytes)) == 0) holes_[0] = kArenaBytes;
    }
    int fd_;
    std::mutex mutex_;
    std::map<uint64_t, uint64_t> holes_;  // offset -> bytes
};

uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

std::shared_ptr<Backing> Backing::in_arena(uint64_t bytes) {
    bytes = round_up(bytes, kArenaUnit);
    uint64_t offset = 0;
    if (!Arena::get().take(bytes, offset)) return nullptr;
    return std::shared_ptr<Backing>(new Backing(Kind::kArena, Arena::get().fd(), offset, bytes));
}

std::shared_ptr<Backing> Backing::in_own_file(uint64_t bytes) {
    const int fd = memfd_create("gemlet-sim-shareable", MFD_CLOEXEC);
    if (fd < 0) return nullptr;
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        close(fd);
        return nullptr;
    }
    return std::shared_ptr<Backing>(new Backing(Kind::kFile, fd, 0, bytes));
}

std::shared_ptr<Backing> Backing::from_descriptor(int fd, uint64_t offset, uint64_t bytes) {
    return std::shared_ptr<Backing>(new Backing(Kind::kFile, fd, offset, bytes));
}

Backing::~Backing() {
    if (kind_ == Kind::kArena)
        Arena::get().give(offset_, bytes_);
    else
        close(fd_);
}

uintptr_t Backing::map(uintptr_t address, uint64_t from, uint64_t length, bool accessible) const {
    void* mapped =
        mmap(reinterpret_cast<void*>(address), length, accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
             MAP_SHARED | MAP_NORESERVE | (address != 0 ? MAP_FIXED : 0), fd_, static_cast<off_t>(offset_ + from));
    return mapped == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(mapped);
}

uintptr_t reserve_addresses(uintptr_t wish, uint64_t bytes, uint64_t alignment) {
    // Devices align to 2 MiB, mmap to 4 KiB: take more and give the ends back.
    const uint64_t room = bytes + alignment;
    void* mapped =
        mmap(reinterpret_cast<void*>(wish), room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const auto start = reinterpret_cast<uintptr_t>(mapped);
    const uintptr_t aligned = round_up(start, alignment);
    if (aligned > start) munmap(mapped, aligned - start);
    munmap(reinterpret_cast<void*>(aligned + bytes), start + room - (aligned + bytes));
    return aligned;
}

void forget_addresses(uintptr_t address, uint64_t bytes) {
    munmap(reinterpret_cast<void*>(address), bytes);
}

void unmap_to_reserved(uintptr_t address, uint64_t bytes) {
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
}

}  // namespace gemlet::sim
