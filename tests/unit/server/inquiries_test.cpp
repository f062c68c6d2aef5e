// A user's processes that cannot be looked at for now, as many as there are threads for, and two more, of which one
// has gone before it was its turn. Prints what was looked at beyond the first, and of what something was found.
#include <sys/eventfd.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <thread>

#include "server/inquiries.hpp"

namespace {

constexpr int kThreads = 16, kGone = 100, kStays = 101;
std::atomic<int> hanging{0};
std::atomic<bool> answers{false};

}  // namespace

namespace gemlet::server {

Look look_at(pid_t pid) {
    ++hanging;
    while (!answers) std::this_thread::yield();
    if (pid >= kThreads) std::printf("looked at %d\n", pid);
    return {};
}

}  // namespace gemlet::server

int main() {
    const int wake = eventfd(0, 0);
    gemlet::server::Inquiries inquiries(wake);
    for (int pid = 0; pid < kThreads; ++pid) inquiries.ask("user", uint64_t(pid), pid);
    while (hanging < kThreads) std::this_thread::yield();
    for (const int pid : {kGone, kStays}) inquiries.ask("user", uint64_t(pid), pid);
    inquiries.forget(kGone);
    answers = true;
    for (int found = 0; found < kThreads + 1;)
        for (const auto& each : inquiries.take()) {
            if (each.tag >= kThreads) std::printf("found %d\n", int(each.tag));
            ++found;
        }
}
