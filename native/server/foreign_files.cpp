#include "server/foreign_files.hpp"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
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

// What is unread may come with descriptors. Nothing comes after this.
bool has_unread(int socket) {
    if (option(socket, SO_ACCEPTCONN)) return true;  // in connections that nobody has accepted
    shutdown(socket, SHUT_RDWR);
    if (int bytes = 0; option(socket, SO_TYPE) == SOCK_STREAM)
        return ioctl(socket, SIOCINQ, &bytes) != 0 || bytes > 0;
    // With its sender's name a message of no bytes can be told from the end.
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    char byte;
    iovec part{&byte, sizeof byte};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    // An error, such as that a peer is gone which had not read all, comes before what is unread.
    const ssize_t size = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
    return size != 0 || message.msg_controllen > 0;
}

struct Meeting {
    std::binary_semaphore ready{0}, closed{0};
    bool alone = false;  // the thread has a table of descriptors of its own
};

void close_with_a_thread(int fd) {
    const auto meeting = std::make_shared<Meeting>();
    std::thread([fd, meeting] {
        meeting->alone = unshare(CLONE_FILES) == 0;
        const bool alone = meeting->alone;
        meeting->ready.release();
        if (alone)
            meeting->closed.acquire();  // and ends with all that is in its table: then no connection lingers
        else
            close(fd);
    }).detach();
    meeting->ready.acquire();
    if (!meeting->alone) return;
    close(fd);
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
    if (!refuses_files(socket) && has_unread(socket)) try {
            return close_with_a_thread(socket);
        } catch (const std::exception&) {  // the system has no thread left
        }
    close(socket);
}

}  // namespace gemlet::server
