// Physical memory of simulated devices: pages of anonymous memory files, so that they can be mapped at any address,
// at several, in several processes, and cost nothing until touched.
#pragma once

#include <cstdint>
#include <memory>

namespace gemlet::sim {

class Backing {
  public:
    // Part of this process's one big file: thousands of allocations must not need thousands of descriptors.
    static std::shared_ptr<Backing> in_arena(uint64_t bytes);
    // A file of its own, whose descriptor can be handed to another process.
    static std::shared_ptr<Backing> in_own_file(uint64_t bytes);
    // What another process made; takes the descriptor over.
    static std::shared_ptr<Backing> from_descriptor(int fd, uint64_t offset, uint64_t bytes);

    ~Backing();
    Backing(const Backing&) = delete;
    Backing& operator=(const Backing&) = delete;

    int fd() const { return fd_; }
    uint64_t offset() const { return offset_; }
    uint64_t bytes() const { return bytes_; }

    // Maps at `address` (0: anywhere) with access for everybody or for nobody. Returns 0 on failure.
    uintptr_t map(uintptr_t address, uint64_t from, uint64_t length, bool accessible) const;

  private:
    enum class Kind { kArena, kFile };
    Backing(Kind kind, int fd, uint64_t offset, uint64_t bytes)
        : kind_(kind), fd_(fd), offset_(offset), bytes_(bytes) {}

    Kind kind_;
    int fd_;
    uint64_t offset_;
    uint64_t bytes_;
};

// Address space without memory: touching it is a segmentation fault. 0 on failure.
uintptr_t reserve_addresses(uintptr_t wish, uint64_t bytes, uint64_t alignment);
void forget_addresses(uintptr_t address, uint64_t bytes);
// Takes the memory away but keeps the addresses.
void unmap_to_reserved(uintptr_t address, uint64_t bytes);

}  // namespace gemlet::sim
