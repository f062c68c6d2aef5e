#include "server/process.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>

#include "server/descriptor.hpp"
#include "server/registry.hpp"

namespace gemlet::server {

uint64_t start_of(pid_t pid) {
    char path[64], line[1024] = "";
    std::snprintf(path, sizeof path, "/proc/%d/stat", int(pid));
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
    if (!file || !std::fgets(line, sizeof line, file.get())) return 0;
    const char* rest = std::strrchr(line, ')');  // the name before it may contain anything
    if (!rest || rest[1] != ' ' || rest[2] == 'Z' || rest[2] == 'X') return 0;
    unsigned long long started = 0;
    int field = 2;
    for (const char* at = rest + 1; at && field < 22; at = std::strchr(at + 1, ' '))
        if (++field == 22) std::sscanf(at, "%llu", &started);
    return started;
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
