// gemlet-start-check PERMITS [PROC [SECONDS]]: run on the node by the container runtime, as an OCI hook of the CDI
// file of a share, before anything of a container in that share runs. It fails, and so the container does not start,
// unless the agent has found that the container's pod cannot leave the share (src/gemlet/kube/permits.py).
//
// PERMITS: the share's directory there, with a file for each pod, by uid; it is there as long as the share. PROC:
// /proc.
//
// A pod that the agent has not seen yet is waited for, for SECONDS: the kubelet may be faster than the agent's watch,
// and a pod that is never restarted would have failed for good. But for no longer than that: meanwhile containerd
// answers nothing about the pod, and so the kubelet has no measurements of the whole node, by which it evicts pods.

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "start_check/pod_of_container.h"

namespace {

constexpr char kMayStart[] = "may start\n";  // MAY_START in permits.py
constexpr int kWaitSeconds = 10;
constexpr long kStepNs = 20'000'000;
constexpr size_t kMostBytes = 4096;  // of a refusal that is shown

int refuse(const std::string& why) {
    // The runtime shows it in the pod's events.
    std::fprintf(stderr, "gemlet: the container does not start in its share: %s\n", why.c_str());
    return 1;
}

// All that there is to read at `descriptor`, which is closed; nothing of one that is none, or fails.
std::optional<std::string> content_of(int descriptor) {
    if (descriptor < 0) return std::nullopt;
    std::string content;
    char piece[4096];
    ssize_t got = 0;
    while ((got = read(descriptor, piece, sizeof piece)) > 0 || (got < 0 && errno == EINTR)) {
        if (got > 0) content.append(piece, static_cast<size_t>(got));
    }
    close(descriptor);
    return got < 0 ? std::nullopt : std::optional(content);
}

std::optional<std::string> content_of(const std::string& path) {
    return content_of(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

double now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return refuse("gemlet-start-check was given no directory of permits");
    const std::string permits = argv[1], proc = argc > 2 ? argv[2] : "/proc";
    const auto pid = gemlet::pid_of(content_of(STDIN_FILENO).value_or(""));
    if (!pid) return refuse("the runtime did not say which process it is");
    const auto cgroups = content_of(proc + "/" + std::to_string(*pid) + "/cgroup");
    if (!cgroups) return refuse("its cgroups cannot be read: " + std::string(std::strerror(errno)));
    const auto pod = gemlet::pod_of(*cgroups);
    if (!pod) return refuse("its cgroups name no pod; the kubelet must run with cgroupsPerQOS");
    const std::string path = permits + "/" + *pod;
    const double give_up = now() + (argc > 3 ? std::atoi(argv[3]) : kWaitSeconds);
    while (true) {
        // Without its end it is what a power cut has left, and the agent writes it again.
        if (const auto said = content_of(path); said && said->ends_with('\n')) {
            return *said == kMayStart ? 0 : refuse(said->substr(0, kMostBytes));
        }
        if (access(permits.c_str(), F_OK) != 0) return refuse("gemlet's agent on this node knows the share no more");
        if (now() >= give_up) return refuse("gemlet's agent on this node has not seen the pod yet");
        const timespec step{0, kStepNs};
        nanosleep(&step, nullptr);
    }
}
