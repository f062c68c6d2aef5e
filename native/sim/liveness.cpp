#include "liveness.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gemlet::sim {

uint64_t process_start(uint32_t pid) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == EMFILE || errno == ENFILE ? kUnknownStart : 0;
    char text[1024];
    const ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = '\0';
    // The command name is in parentheses and may itself contain some; the fields after the last one are plain.
    const char* field = std::strrchr(text, ')');
    if (field == nullptr || field[1] == '\0') return 0;
    field += 2;  // field 3, the state
    const char state = *field;
    unsigned long threads = 0;
    for (int number = 3; number < 22; ++number) {
        field = std::strchr(field, ' ');
        if (field == nullptr) return 0;
        ++field;
        if (number + 1 == 20) threads = std::strtoul(field, nullptr, 10);
    }
    // A process lives on after its first thread.
    if (state == 'X' || (state == 'Z' && threads <= 1)) return 0;
    return std::strtoull(field, nullptr, 10);
}

Liveness::~Liveness() {
    for (const auto& [process, fd] : pidfds_)
        if (fd >= 0) close(fd);
}

bool Liveness::alive(uint32_t pid, uint64_t start) {
    const auto key = std::make_pair(pid, start);
    auto known = pidfds_.find(key);
    if (known == pidfds_.end()) {
        // Open first, then check who it is: afterwards the descriptor can mean nobody else.
        int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
        const uint64_t found = process_start(pid);
        if (found == kUnknownStart) {  // what cannot be told now is not remembered
            if (fd >= 0) close(fd);
            return true;
        }
        if (found != start) {
            if (fd >= 0) close(fd);
            fd = -1;
        } else if (fd < 0) {
            fd = -2;
        }
        if (pidfds_.size() > 256) {  // processes come and go
            for (auto& [process, old] : pidfds_)
                if (old >= 0) close(old);
            pidfds_.clear();
        }
        known = pidfds_.emplace(key, fd).first;
    }
    if (known->second == -1) return false;
    if (known->second == -2) {
        const uint64_t found = process_start(pid);
        return found == start || found == kUnknownStart;
    }
    pollfd waiting{known->second, POLLIN, 0};
    if (poll(&waiting, 1, 0) <= 0) return true;
    close(known->second);
    known->second = -1;
    return false;
}

}  // namespace gemlet::sim
