// Is a process still alive? Asked for every process of the machine, often, so the common answer is one poll(2).
#pragma once

#include <sys/stat.h>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace gemlet::sim {

// Field 22 of /proc/<pid>/stat: with the pid it names one process for ever. 0 if there is no such process, or only
// its zombie; kUnknownStart if this process has no descriptor left to look.
inline constexpr uint64_t kUnknownStart = UINT64_MAX;
uint64_t process_start(uint32_t pid);

// Readable from the moment its process ended, even while that is a zombie. The program may close the number, as
// daemons close all their files, and give it to a file of its own: that is neither believed nor closed.
class Pidfd {
  public:
    enum class State : uint8_t { kAlive, kEnded, kUnknown };

    explicit Pidfd(uint32_t pid);
    ~Pidfd();
    Pidfd(const Pidfd&) = delete;
    Pidfd& operator=(const Pidfd&) = delete;
    State look() const;  // unknown: there is no such descriptor (any more)

  private:
    bool is_ours() const;

    int fd_;
    struct stat file_{};
};

class Liveness {
  public:
    bool alive(uint32_t pid, uint64_t start);

  private:
    std::map<std::pair<uint32_t, uint64_t>, std::unique_ptr<Pidfd>> processes_;  // null: seen dead
};

}  // namespace gemlet::sim
