#include "hook/link/mps.h"

#include <sys/stat.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "hook/link/system_calls.h"

namespace gemlet::hook {

namespace {

// As it was when a thread of the program first asked: the hook's own ask again while the program may be changing its
// environment, which before glibc 2.41 nobody may read then.
const char* pid_file() {
    static const auto* path = [] {
        const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
        if (!directory || !*directory) directory = "/tmp/nvidia-mps";
        return new std::string(std::string(directory) + "/nvidia-cuda-mps-control.pid");
    }();
    return path->c_str();
}

}  // namespace

bool under_mps() {
    // CUDA's default place is everybody's: a pipe or a device there must neither block nor be read.
    const int file = calls::open(pid_file(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) return false;
    struct stat what{};
    char text[32] = {};
    const bool regular = fstat(file, &what) == 0 && S_ISREG(what.st_mode);
    const ssize_t n = regular ? calls::read(file, text, sizeof text - 1) : 0;
    calls::close(file);
    const long pid = n > 0 ? std::strtol(text, nullptr, 10) : 0;
    // The file outlives a daemon that was killed. A daemon of another user cannot be signalled, but it exists.
    return pid > 0 && (kill(pid_t(pid), 0) == 0 || errno == EPERM);
}

}  // namespace gemlet::hook
