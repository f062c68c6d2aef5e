#include "server/shared_memory.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

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

// A pipe that has the pages, which nobody reads: while it is open, the kernel moves them nowhere else. None: it does
// not put them there.
Descriptor pin(void* memory, size_t size) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail("pipe2", -1);
    Descriptor out(ends[0]), in(ends[1]);
    fcntl(in.get(), F_SETPIPE_SZ, int(size));  // of all pipes of a user there may be so much
    const iovec pages{memory, size};
    return vmsplice(in.get(), &pages, 1, SPLICE_F_NONBLOCK) == ssize_t(size) ? std::move(out) : Descriptor();
}

// While a process takes pages out of a file (FALLOC_FL_PUNCH_HOLE, MADV_REMOVE), or makes large pages of them
// (MADV_COLLAPSE), others that look there wait: for as long as that process likes, which may see to it that it gets
// no processor. What is immutable loses no page, and can be mapped for writing by those who have it open already.
Descriptor keep_in_place(int fd, void* memory, size_t size) {
    int flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return Descriptor();  // before Linux 6.6
    flags |= FS_IMMUTABLE_FL;
    if (ioctl(fd, FS_IOC_SETFLAGS, &flags) != 0) return Descriptor();  // without CAP_LINUX_IMMUTABLE
    return pin(memory, size);
}
}  // namespace

void* make_shared_memory(const char* name, size_t size, Access access, int& fd, Descriptor& kept) {
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
    try {
        const bool sealed = access == Access::kReadOnly && fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) == 0;
        if (!sealed && fcntl(fd, F_ADD_SEALS, seals) != 0) fail("F_ADD_SEALS", -1);
        kept = keep_in_place(fd, memory, size);
        if (access == Access::kReadWrite || sealed) return memory;
        // Before Linux 5.1: hand out a descriptor that was never open for writing.
        const int read_only = reopen_read_only(fd);
        close(fd);
        fd = read_only;
        return memory;
    } catch (...) {
        free_shared_memory(memory, size, fd);
        throw;
    }
}

void* map_shared_memory(int fd, size_t size, Descriptor& kept) {
    struct stat s;
    if (fstat(fd, &s) != 0) fail("fstat", -1);
    const int seals = fcntl(fd, F_GET_SEALS);
    if (s.st_size != off_t(size) || seals < 0 || !(seals & F_SEAL_SHRINK))
        throw std::invalid_argument("memory that is not a daemon's");
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap", -1);
    try {
        // What that daemon could not keep in place stays so: a client that writes there by a system call which never
        // ends would hold up who changes its flags.
        int flags = 0;
        if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && flags & FS_IMMUTABLE_FL) kept = pin(memory, size);
    } catch (...) {
        munmap(memory, size);
        throw;
    }
    return memory;
}

bool can_keep_in_place() {
    constexpr size_t kAny = 64;
    int fd = -1;
    Descriptor kept;
    free_shared_memory(make_shared_memory("gemlet-probe", kAny, Access::kReadWrite, fd, kept), kAny, fd);
    return kept.get() >= 0;
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
