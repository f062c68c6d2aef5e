// Programs that the daemon has seen and does not govern, and why, so that people can see them too.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arbiter/arbiter.hpp"

namespace gemlet::server {

struct Unmanaged {
    pid_t pid = 0;
    uid_t uid = 0;
    std::string command, group, why;  // printable; the group as it asked for it, empty where it was not heard
    std::optional<bool> strict;       // waits and fails, instead of running on; none: it was not heard
    arbiter::Nanoseconds since = 0;
    bool joined = false;   // it is governed as soon as it uses a device
    uint64_t started = 0;  // ticks since boot, so that a pid that is used again is another process
    bool limited = false;  // it says that it keeps to limits that it was given
    uid_t account = 0;     // as whose it is counted (accounts.hpp)
};

// Those whose connection is gone, or never was. Bounded: one user's cannot push those of others out.
class UnmanagedList {
  public:
    static constexpr size_t kMost = 256;

    void put(Unmanaged entry);  // instead of what was known of its pid
    void forget(pid_t pid);
    void looked_at(pid_t pid, uint64_t started);  // forgets it, if that shows that it has ended
    bool has(pid_t pid) const;
    const std::vector<Unmanaged>& entries() const { return entries_; }

  private:
    std::vector<Unmanaged> entries_;  // oldest first
};

}  // namespace gemlet::server
