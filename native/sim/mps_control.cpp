// nvidia-cuda-mps-control of the simulated machine: starts its MPS daemon, or sends it the commands on stdin. It says
// what NVIDIA's says where scripts look for it.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "mps_daemon.hpp"
#include "mps_pipe.hpp"

using namespace gemlet::sim;

namespace {

constexpr const char* kUsage =
    "usage: nvidia-cuda-mps-control [-d | -f | -v]   (the simulated machine's)\n"
    "  -d   start the daemon in the background\n"
    "  -f   start the daemon in the foreground\n"
    "  -v   print the version\n"
    "Without an option it sends the commands on stdin to the daemon of CUDA_MPS_PIPE_DIRECTORY; `help` lists them.\n";

int serve() {
    try {
        MpsDaemon daemon;
        daemon.announce();
        daemon.run();
        return 0;
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}

// The parent returns when the daemon listens, or with its complaint.
int serve_in_background() {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return 1;
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child > 0) {
        close(ready[1]);
        char text[1024];
        const ssize_t length = read(ready[0], text, sizeof text);
        if (length == 1 && text[0] == '\0') return 0;
        if (length > 0) std::printf("%.*s\n", static_cast<int>(length), text);
        return 1;
    }
    setsid();
    // Closes everything inherited from the starting process: files, terminal and pipes.
    constexpr int kReport = STDERR_FILENO + 1;
    if (ready[1] != kReport && dup3(ready[1], kReport, O_CLOEXEC) < 0) return 1;
    Descriptor report(kReport);
    syscall(SYS_close_range, kReport + 1, ~0u, 0);
    try {
        MpsDaemon daemon;
        const int null = open("/dev/null", O_RDWR);
        for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
        if (null > STDERR_FILENO) close(null);
        daemon.announce();
        if (chdir("/") != 0) { /* then it stays where it is */
        }
        if (write(report.get(), "", 1) != 1) return 1;
        report.reset();
        daemon.run();
        return 0;
    } catch (const std::exception& error) {
        if (report.valid() && write(report.get(), error.what(), std::strlen(error.what())) < 0) { /* nobody listens */
        }
        return 1;
    }
}

int send_commands() {
    const Descriptor daemon = mps_connect(mps_pipe_directory(), kMpsMarker);
    if (!daemon.valid()) {
        std::printf("Cannot find MPS control daemon process\n");
        return 1;
    }
    for (std::string line; std::getline(std::cin, line);) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const auto answer = mps_send(daemon.get(), line) ? mps_receive(daemon.get()) : std::nullopt;
        const bool quit = line.substr(line.find_first_not_of(" \t"), 4) == "quit";
        if (answer && *answer != "\n") std::fputs(answer->c_str(), stdout);
        std::fflush(stdout);
        if (quit && (!answer || *answer == "\n")) return 0;
        if (!answer) {
            std::printf("Cannot find MPS control daemon process\n");
            return 1;
        }
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string option = argc > 1 ? argv[1] : "";
    if (argc == 1) return send_commands();
    if (argc == 2 && option == "-d") return serve_in_background();
    if (argc == 2 && option == "-f") return serve();
    if (argc == 2 && option == "-v") {
        std::puts("CUDA MPS version 13000 (simulated)");
        return 0;
    }
    std::fputs(kUsage, stderr);
    return 1;
}
