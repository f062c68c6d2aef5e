#include "server/process.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string_view>
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

uint64_t start_of(pid_t pid) {
    char path[64], line[1024] = "";
    std::snprintf(path, sizeof path, "/proc/%d/stat", int(pid));
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
    if (!file || !std::fgets(line, sizeof line, file.get())) return 0;
    const char* at = std::strrchr(line, ')');  // the name before it may contain anything
    if (!at || at[1] != ' ') return 0;
    const char state = at[2];
    unsigned long long threads = 0, started = 0;
    int field = 2;
    for (++at; at && field < 22; at = std::strchr(at + 1, ' ')) {
        ++field;
        if (field == 20) std::sscanf(at, "%llu", &threads);
        if (field == 22) std::sscanf(at, "%llu", &started);
    }
    // One whose first thread has ended looks like a dead one, but for the others.
    if (state == 'X' || (state == 'Z' && threads <= 1)) return 0;
    return started;
}

uint64_t ticks_since_boot() {
    timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t(t.tv_sec) * 1'000'000'000 + uint64_t(t.tv_nsec)) /
           (1'000'000'000 / uint64_t(sysconf(_SC_CLK_TCK)));
}

// What the kernel told the program at its start: where it was loaded, where its random bytes are. All of that is
// drawn anew for each exec(2), unless randomization is off.
uint64_t image_of(pid_t pid) {
    char path[64], told[1024];
    std::snprintf(path, sizeof path, "/proc/%d/auxv", int(pid));
    const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t size = file.get() < 0 ? 0 : read(file.get(), told, sizeof told);
    return size > 0 ? std::hash<std::string_view>()({told, size_t(size)}) : 0;
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
