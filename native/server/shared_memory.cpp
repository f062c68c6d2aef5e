#include "server/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace gemlet::server {

namespace {
[[noreturn]] void fail(const char* what, int fd) {
    int error = errno;
    if (fd >= 0) close(fd);
    throw std::system_error(error, std::generic_category(), what);
}
}  // namespace

void* make_shared_memory(const char* name, size_t size, Access access, int& fd) {
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);  // before Linux 6.3
    if (fd < 0) fail("memfd_create", fd);
    // A memfd begins with mode 0777: a process with a descriptor for reading could open it again for writing, in
    // /proc/self/fd.
    if (fchmod(fd, 0600) != 0) fail("fchmod", fd);
    if (ftruncate(fd, off_t(size)) != 0) fail("ftruncate", fd);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap", fd);
    // No more of them: a client that seals its memory against writing would keep others from mapping it.
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (access == Access::kReadOnly && fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) == 0) return memory;
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) {
        munmap(memory, size);
        fail("F_ADD_SEALS", fd);
    }
    if (access == Access::kReadOnly) {  // before Linux 5.1: hand out a descriptor that was never open for writing
        int read_only = -1;
        try {
            read_only = reopen_read_only(fd);
        } catch (...) {
            munmap(memory, size);
            close(fd);
            throw;
        }
        close(fd);
        fd = read_only;
    }
    return memory;
}

void* map_shared_memory(int fd, size_t size) {
    struct stat s;
    if (fstat(fd, &s) != 0) fail("fstat", -1);
    const int seals = fcntl(fd, F_GET_SEALS);
    if (s.st_size != off_t(size) || seals < 0 || !(seals & F_SEAL_SHRINK))
        throw std::invalid_argument("memory that is not a daemon's");
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap", -1);
    return memory;
}

int reopen_read_only(int fd) {
    int read_only = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC);
    if (read_only < 0) fail("reopen read-only", -1);
    return read_only;
}

void free_shared_memory(void* memory, size_t size, int fd) noexcept {
    if (memory) munmap(memory, size);
    if (fd >= 0) close(fd);
}

}  // namespace gemlet::server
