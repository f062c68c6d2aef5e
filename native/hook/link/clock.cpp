// Where the time comes from. Programs that shift the clock (faketime) put a clock_gettime of their own before libc's;
// with it the hook would stop at once, or never, for the daemon's times are those of the machine.
#include "hook/link/clock.h"

#include <dlfcn.h>
#include <atomic>
#include <cerrno>

#include "machine/clock.h"

namespace gemlet::hook {

namespace {

int system_call(clockid_t clock, timespec* time) {
    return int(syscall(SYS_clock_gettime, clock, time));
}

// No lock: threads that come here together find the same, and a lock held across dlopen could meet the loader's own.
Clock* find() {
    const int before = errno;
    void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void* found = libc ? dlsym(libc, "clock_gettime") : nullptr;
    if (!found) dlerror();
    errno = before;
    return found ? reinterpret_cast<Clock*>(found) : system_call;
}

}  // namespace

void look_at_clock() {
    clock_ahead_ns.store(ahead_of_machine_ns(), std::memory_order_relaxed);
}

Clock* machines_clock() {
    static constinit std::atomic<Clock*> cache{nullptr};
    Clock* known = cache.load(std::memory_order_relaxed);
    if (!known) [[unlikely]]
        cache.store(known = find(), std::memory_order_relaxed);
    return known;
}

}  // namespace gemlet::hook
