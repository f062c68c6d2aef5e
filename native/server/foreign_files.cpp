#include "server/foreign_files.hpp"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "futex.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#ifdef __SANITIZE_THREAD__
// The thread sanitizer's own clone() takes whatever it makes for another process.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...);
#define clone __clone
#endif

namespace gemlet::server {

namespace {

bool refuses_files(int socket) {
    int passes = 1;
    socklen_t size = sizeof passes;
    return getsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &passes, &size) == 0 && passes == 0;
}

int option(int socket, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    return getsockopt(socket, SOL_SOCKET, name, &value, &size) == 0 ? value : 0;
}

// Whether descriptors may come with what is unread. Nothing comes after this; messages that bring none are gone: a
// program that is killed leaves some, and a thread for each of many would take the daemon's time.
bool has_files(int socket) {
    if (option(socket, SO_ACCEPTCONN)) return true;  // in connections that nobody has accepted
    shutdown(socket, SHUT_RDWR);
    if (int bytes = 0; option(socket, SO_TYPE) == SOCK_STREAM)
        return ioctl(socket, SIOCINQ, &bytes) != 0 || bytes > 0;
    // With its sender's name a message of no bytes can be told from the end.
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    // The error of a connection comes once, before what is unread.
    for (int errors = 0; errors < 2;) {
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
        msghdr message{};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const ssize_t size = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
        if (size < 0) {
            ++errors;
            continue;
        }
        if (message.msg_flags & MSG_CTRUNC) return true;
        if (size == 0 && message.msg_controllen == 0) return false;
        recv(socket, nullptr, 0, MSG_DONTWAIT | MSG_TRUNC);
    }
    return true;
}

void close_each(const std::vector<int>& sockets) {
    for (const int socket : sockets) close(socket);
}

// A thread with a table of descriptors of its own. It shares all that is thread-local with the one that made it, so
// it calls nothing that writes there.
struct Apart {
    alignas(16) std::array<char, 16 * 1024> stack;
    bool closed = false;
    std::atomic<uint32_t> runs{0};  // the kernel clears it when the stack is free
};

// Sanitizers keep their books by thread-local variables.
__attribute__((no_sanitize("thread", "address"))) int outlive(void* apart) {
    while (!__atomic_load_n(&static_cast<Apart*>(apart)->closed, __ATOMIC_ACQUIRE)) sched_yield();
    return 0;
}

// One that does not run; waits for the first to end where many do.
Apart& a_free_one() {
    static std::array<Apart, 16> all;
    for (;;) {
        for (Apart& one : all)
            if (uint32_t free = 0; one.runs.compare_exchange_strong(free, 1)) return one;
        futex_wait(all.front().runs, 1, 1'000'000);
    }
}

// The thread has what is in the table as well, and ends when this one has closed it: at the end of a thread no
// connection lingers. unshare(2) would do the same for one of libc's, but containers may not call it. False: the
// system has no thread left.
bool close_with_a_thread(const std::vector<int>& sockets) {
    constexpr int kThreadWithItsFiles =
        CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    Apart& apart = a_free_one();
    __atomic_store_n(&apart.closed, false, __ATOMIC_RELAXED);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler runs there
    const bool made = clone(outlive, apart.stack.data() + apart.stack.size(), kThreadWithItsFiles, &apart, nullptr,
                            nullptr, &apart.runs) >= 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (made) close_each(sockets);
    __atomic_store_n(&apart.closed, true, __ATOMIC_RELEASE);
    if (!made) apart.runs = 0;
    return made;
}

}  // namespace

bool refuse_files(int socket) {
    const int off = 0;
    return setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
}

Next next_from(int socket) {
    msghdr message{};
    if (recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) >= 0)
        return message.msg_flags & MSG_CTRUNC ? Next::kFiles : Next::kMessage;
    return errno == EAGAIN || errno == EINTR ? Next::kNothing : Next::kEnd;
}

void close_apart(int socket) {
    if (refuses_files(socket) || !has_files(socket))
        close(socket);
    else
        close_shared_apart({socket});
}

void close_shared_apart(const std::vector<int>& sockets) {
    const bool refused = std::all_of(sockets.begin(), sockets.end(), refuses_files);
    if (refused || !close_with_a_thread(sockets)) close_each(sockets);
}

}  // namespace gemlet::server
