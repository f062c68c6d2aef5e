#include "liveness.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
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

Pidfd::Pidfd(uint32_t pid) : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
    if (fd_ >= 0 && fstat(fd_, &file_) != 0) fd_ = -1;
}

Pidfd::~Pidfd() {
    if (is_ours()) close(fd_);
}

bool Pidfd::is_ours() const {
    struct stat now{};
    return fd_ >= 0 && fstat(fd_, &now) == 0 && now.st_dev == file_.st_dev && now.st_ino == file_.st_ino;
}

Pidfd::State Pidfd::look() const {
    if (!is_ours()) return State::kUnknown;
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, 0) <= 0) return State::kAlive;
    return (waiting.revents & POLLIN) != 0 && is_ours() ? State::kEnded : State::kUnknown;
}

bool Liveness::alive(uint32_t pid, uint64_t start) {
    const auto key = std::make_pair(pid, start);
    const auto known = processes_.find(key);
    if (known != processes_.end()) {
        if (known->second == nullptr) return false;
        const Pidfd::State state = known->second->look();
        if (state == Pidfd::State::kAlive) return true;
        if (state == Pidfd::State::kEnded) {
            known->second = nullptr;
            return false;
        }
        processes_.erase(known);
    }
    // Open first, then check who it is: afterwards the descriptor can mean nobody else.
    auto pidfd = std::make_unique<Pidfd>(pid);
    const uint64_t found = process_start(pid);
    if (found == kUnknownStart) return true;  // what cannot be told now is not remembered
    if (found != start) pidfd = nullptr;
    const bool is_alive = pidfd != nullptr;
    if (processes_.size() > 256) processes_.clear();  // processes come and go
    processes_.emplace(key, std::move(pidfd));
    return is_alive;
}

}  // namespace gemlet::sim
