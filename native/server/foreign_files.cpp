#include "server/foreign_files.hpp"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <semaphore>
#include <thread>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
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

struct Meeting {
    std::binary_semaphore ready{0}, closed{0};
    bool alone = false;  // the thread has a table of descriptors of its own
};

void close_with_a_thread(const std::vector<int>& sockets) {
    const auto meeting = std::make_shared<Meeting>();
    std::thread([sockets, meeting] {
        meeting->alone = unshare(CLONE_FILES) == 0;
        const bool alone = meeting->alone;
        meeting->ready.release();
        if (alone)
            meeting->closed.acquire();  // and ends with all that is in its table: then no connection lingers
        else
            close_each(sockets);
    }).detach();
    meeting->ready.acquire();
    if (!meeting->alone) return;
    close_each(sockets);
    meeting->closed.release();
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
    if (!std::all_of(sockets.begin(), sockets.end(), refuses_files)) try {
            return close_with_a_thread(sockets);
        } catch (const std::exception&) {  // the system has no thread left
        }
    close_each(sockets);
}

}  // namespace gemlet::server
