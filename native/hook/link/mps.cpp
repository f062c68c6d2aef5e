#include "hook/link/mps.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "hook/link/system_calls.h"

namespace gemlet::hook {

bool under_mps() {
    const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory || !*directory) directory = "/tmp/nvidia-mps";
    char path[4096];
    const int length = std::snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", directory);
    if (length < 0 || size_t(length) >= sizeof path) return false;
    const int file = calls::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    char text[32] = {};
    const ssize_t n = calls::read(file, text, sizeof text - 1);
    calls::close(file);
    const long pid = n > 0 ? std::strtol(text, nullptr, 10) : 0;
    // The file outlives a daemon that was killed. A daemon of another user cannot be signalled, but it exists.
    return pid > 0 && (kill(pid_t(pid), 0) == 0 || errno == EPERM);
}

}  // namespace gemlet::hook
