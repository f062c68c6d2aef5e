// The system calls of the hook that may block or that POSIX lets a thread be cancelled in.
//
// No function of the hook is a cancellation point: a thread that pthread_cancel() ends in one would keep the hook's
// locks and count as waiting for ever, for there are no exceptions here, so nothing unwinds. libc's functions for
// these calls are cancellation points; its syscall() is not. A test looks for such functions among the hook's
// symbols.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace gemlet::hook::calls {

inline int open(const char* path, int flags) {
    return int(syscall(SYS_openat, AT_FDCWD, path, flags, 0));
}

inline int close(int fd) {
    return int(syscall(SYS_close, fd));
}

inline ssize_t read(int fd, void* data, size_t size) {
    return syscall(SYS_read, fd, data, size);
}

inline ssize_t write(int fd, const void* data, size_t size) {
    return syscall(SYS_write, fd, data, size);
}

inline int poll(pollfd& one, int milliseconds) {
    timespec t{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
    return int(syscall(SYS_ppoll, &one, 1, &t, nullptr, size_t{0}));
}

inline int connect(int fd, const sockaddr* address, socklen_t size) {
    return int(syscall(SYS_connect, fd, address, size));
}

inline ssize_t send(int fd, const void* data, size_t size, int flags) {
    return syscall(SYS_sendto, fd, data, size, flags, nullptr, 0);
}

inline ssize_t recvmsg(int fd, msghdr& message, int flags) {
    return syscall(SYS_recvmsg, fd, &message, flags);
}

// If one of them is pending.
inline void take_signal(const sigset_t& signals) {
    constexpr size_t kKernels = 64 / 8;  // bytes of the kernel's set
    const timespec now{};
    syscall(SYS_rt_sigtimedwait, &signals, nullptr, &now, kKernels);
}

inline void sleep(uint64_t ns) {
    const timespec t{time_t(ns / 1'000'000'000u), long(ns % 1'000'000'000u)};
    syscall(SYS_nanosleep, &t, nullptr);
}

}  // namespace gemlet::hook::calls

namespace gemlet::hook {

// For calls into the driver that wait: what it waits with is its own choice.
class Uncancelled {
  public:
    Uncancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
    Uncancelled(const Uncancelled&) = delete;
    Uncancelled& operator=(const Uncancelled&) = delete;

  private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace gemlet::hook
