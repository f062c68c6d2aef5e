// Is a process still alive? Asked for every process of the machine, often, so the common answer is one poll(2).
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace gemlet::sim {

// Field 22 of /proc/<pid>/stat: with the pid it names one process for ever. 0 if there is no such process, or only
// its zombie; kUnknownStart if this process has no descriptor left to look.
inline constexpr uint64_t kUnknownStart = UINT64_MAX;
uint64_t process_start(uint32_t pid);

class Liveness {
  public:
    ~Liveness();
    bool alive(uint32_t pid, uint64_t start);

  private:
    // A pidfd is readable from the moment its process ended, even while it is a zombie. -1: seen dead, -2: no pidfds.
    std::map<std::pair<uint32_t, uint64_t>, int> pidfds_;
};

}  // namespace gemlet::sim
