// A file descriptor that is closed with its owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace gemlet::server {

// `kClose` closes it.
template <auto kClose>
class OwnedDescriptor {
  public:
    explicit OwnedDescriptor(int fd = -1) : fd_(fd) {}
    ~OwnedDescriptor() {
        if (fd_ >= 0) kClose(fd_);
    }
    OwnedDescriptor(OwnedDescriptor&& other) noexcept : fd_(other.release()) {}
    OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    int get() const { return fd_; }
    // Another one of the same; none if there may not be more.
    OwnedDescriptor duplicate() const { return OwnedDescriptor(fd_ < 0 ? -1 : fcntl(fd_, F_DUPFD_CLOEXEC, 3)); }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

using Descriptor = OwnedDescriptor<&::close>;

}  // namespace gemlet::server
