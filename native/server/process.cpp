#include "server/process.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "server/registry.hpp"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gemlet::server {

// By its pid alone it might be another one, that has the number after it. A kernel before 6.5 has nothing else.
Descriptor process_of(int connection, pid_t pid) {
    int fd = -1;
    socklen_t size = sizeof fd;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) != 0) {
        const bool is_known = errno == ESRCH || errno == EINVAL || errno == EMFILE || errno == ENFILE;
        return Descriptor(!is_known && pid > 0 ? int(syscall(SYS_pidfd_open, pid, 0)) : -1);
    }
    Descriptor process(fd);
    // Of a pid that means nothing here, one that cannot be told from those of others is of no use.
    return pid > 0 || number_of(fd) != 0 ? std::move(process) : Descriptor();
}

// Before Linux 6.9 all have the same.
uint64_t number_of(int pidfd) {
    constexpr uint64_t kPidFs = 0x50494446;
    struct statfs files;
    struct stat file;
    if (pidfd < 0 || fstatfs(pidfd, &files) != 0 || uint64_t(files.f_type) != kPidFs) return 0;
    return fstat(pidfd, &file) == 0 ? uint64_t(file.st_ino) : 0;
}

namespace {

// A process's number in the namespace of /proc, and how many there are with those of namespaces that are nested
// there.
struct Numbers {
    pid_t first = 0;
    size_t count = 0;
};

Numbers numbers_in(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("NSpid:")) continue;
        std::istringstream rest(line.substr(6));
        Numbers found;
        for (pid_t number; rest >> number; ++found.count)
            if (found.count == 0) found.first = number;
        return found;
    }
    return {};
}

}  // namespace

bool is_near(int pidfd, pid_t pid) {
    static const size_t ours = numbers_in("/proc/self/status").count;
    if (pidfd < 0 || pid <= 0) return false;
    const Numbers theirs = numbers_in("/proc/self/fdinfo/" + std::to_string(pidfd));
    return theirs.first == pid && theirs.count == ours;
}

namespace {

struct Stat {
    char state = 0;
    std::array<uint64_t, 53> fields = {};  // by their numbers in proc_pid_stat(5), from the fourth on
};

std::optional<Stat> stat_of(pid_t pid) {
    char path[64], line[2048] = "";
    std::snprintf(path, sizeof path, "/proc/%d/stat", int(pid));
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
    if (!file || !std::fgets(line, sizeof line, file.get())) return std::nullopt;
    const char* at = std::strrchr(line, ')');  // the name before it may contain anything
    if (!at || at[1] != ' ') return std::nullopt;
    Stat found{.state = at[2]};
    at = std::strchr(at + 2, ' ');
    for (size_t field = 4; at && field < found.fields.size(); ++field) {
        found.fields[field] = std::strtoull(at, nullptr, 10);
        at = std::strchr(at + 1, ' ');
    }
    return found;
}

uint64_t start_of(const Stat& stat) {
    constexpr size_t kThreads = 20, kStarted = 22;
    // One whose first thread has ended looks like a dead one, but for the others.
    if (stat.state == 'X' || (stat.state == 'Z' && stat.fields[kThreads] <= 1)) return 0;
    return stat.fields[kStarted];
}

// Where the program, its data and its stack were loaded. All of that is drawn anew for each exec(2), unless
// randomization is off.
uint64_t image_of(const Stat& stat) {
    constexpr size_t kCode = 26, kEndOfCode = 27, kStack = 28, kData = 45, kEndOfData = 46, kHeap = 47;
    if (stat.fields[kStack] == 0) return 0;
    uint64_t image = 0;
    for (const size_t field : {kCode, kEndOfCode, kStack, kData, kEndOfData, kHeap})
        image = (image ^ stat.fields[field]) * 0x9e3779b97f4a7c15u + (image >> 29);
    return std::max<uint64_t>(image, 1);
}

}  // namespace

Look look_at(pid_t pid) {
    const std::optional<Stat> stat = stat_of(pid);
    return stat ? Look{start_of(*stat), image_of(*stat)} : Look{};
}

uint64_t ticks_since_boot() {
    timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t(t.tv_sec) * 1'000'000'000 + uint64_t(t.tv_nsec)) /
           (1'000'000'000 / uint64_t(sysconf(_SC_CLK_TCK)));
}

std::string command_of(pid_t pid) {
    char path[64], name[32] = "";
    std::snprintf(path, sizeof path, "/proc/%d/comm", int(pid));
    if (Descriptor file(open(path, O_RDONLY | O_CLOEXEC)); file.get() >= 0) {
        ssize_t n = read(file.get(), name, sizeof name - 1);
        name[n > 0 ? n - 1 : 0] = 0;  // without the newline
    }
    return printable(name);
}

}  // namespace gemlet::server
