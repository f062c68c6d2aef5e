// A file descriptor that is closed with its owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace gemlet::server {

class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) close(fd_);
    }
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    int get() const { return fd_; }
    // Another one of the same; none if there may not be more.
    Descriptor duplicate() const { return Descriptor(fd_ < 0 ? -1 : fcntl(fd_, F_DUPFD_CLOEXEC, 3)); }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

}  // namespace gemlet::server
