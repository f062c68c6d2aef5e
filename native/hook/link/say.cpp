#include "hook/link/say.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <initializer_list>

#include "hook/link/destination.h"
#include "hook/link/system_calls.h"

namespace gemlet::hook {

namespace {

std::atomic<bool> said[int(Topic::kCount)];

// A write to a pipe that nobody reads, or past RLIMIT_FSIZE, ends a program, and one to a terminal may stop it
// (`stty tostop`): but not for what it did not write itself.
void write_unharmed(const char* text, size_t size) {
    sigset_t raised, before, pending;
    sigemptyset(&raised);
    for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTOU}) sigaddset(&raised, signal);
    pthread_sigmask(SIG_BLOCK, &raised, &before);
    sigpending(&pending);
    const bool written = calls::write(STDERR_FILENO, text, size) >= 0;
    const int signal = written ? 0 : errno == EPIPE ? SIGPIPE : errno == EFBIG ? SIGXFSZ : 0;
    if (signal && !sigismember(&pending, signal)) {
        sigset_t own;
        sigemptyset(&own);
        sigaddset(&own, signal);
        calls::take_signal(own);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void say_once(Topic topic, const char* format, ...) {
    if (said[int(topic)].exchange(true)) return;
    if (destination().quiet) return;
    int saved = errno;
    char line[2048];  // names of groups in it may be quoted for a shell
    int n = std::snprintf(line, sizeof line, "gemlet: ");
    va_list arguments;
    va_start(arguments, format);
    n += std::vsnprintf(line + n, sizeof line - size_t(n) - 1, format, arguments);
    va_end(arguments);
    if (n > int(sizeof line) - 2) n = int(sizeof line) - 2;
    line[n++] = '\n';
    write_unharmed(line, size_t(n));
    errno = saved;
}

void may_say_again(Topic topic) {
    said[int(topic)].store(false);
}

}  // namespace gemlet::hook
