// A structure of wire.h in memory that is passed to clients by descriptor.
#pragma once

#include <cstddef>
#include <new>

#include "server/descriptor.hpp"

namespace gemlet::server {

enum class Access { kReadWrite, kReadOnly };

// Makes, maps and seals a memfd of mode 0600: a client can neither shrink it (which would crash the daemon), nor seal
// it further, nor, if kReadOnly, map it for writing. While `kept` is open, it cannot have the kernel take the pages
// away or move them, either, where this process may see to that: from Linux 6.6 on, with CAP_LINUX_IMMUTABLE. Throws
// std::system_error.
void* make_shared_memory(const char* name, std::size_t size, Access access, int& fd, Descriptor& kept);
// Whether the kernel keeps it in place for this process.
bool can_keep_in_place();
// Another descriptor of the same memory, which cannot be mapped for writing, and which only the daemon's own user
// could open again with more rights. Throws std::system_error.
int reopen_read_only(int fd);
// Maps memory that another daemon made so; only what cannot shrink. Throws std::system_error, std::invalid_argument.
void* map_shared_memory(int fd, std::size_t size, Descriptor& kept);
void free_shared_memory(void* memory, std::size_t size, int fd) noexcept;

template <class T>
class Shared {
  public:
    Shared(const char* name, Access access)
        : value_(new (make_shared_memory(name, sizeof(T), access, fd_, kept_)) T{}) {}
    explicit Shared(Descriptor made)
        : fd_(made.get()), value_(static_cast<T*>(map_shared_memory(made.get(), sizeof(T), kept_))) {
        made.release();
    }
    ~Shared() { free_shared_memory(value_, sizeof(T), fd_); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    T* operator->() const { return value_; }
    T& operator*() const { return *value_; }
    int fd() const { return fd_; }
    // The descriptor is only needed until every client it is for has it.
    void close_fd() {
        free_shared_memory(nullptr, 0, fd_);
        fd_ = -1;
    }

  private:
    int fd_ = -1;
    Descriptor kept_;
    T* value_;
};

}  // namespace gemlet::server
