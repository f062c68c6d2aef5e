#include "hook/link/say.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "hook/link/system_calls.h"

namespace gemlet::hook {

namespace {
std::atomic<bool> said[int(Topic::kCount)];
}

void say_once(Topic topic, const char* format, ...) {
    if (said[int(topic)].exchange(true)) return;
    static const bool quiet = std::getenv("GEMLET_QUIET") != nullptr;
    if (quiet) return;
    int saved = errno;
    char line[1024];
    int n = std::snprintf(line, sizeof line, "gemlet: ");
    va_list arguments;
    va_start(arguments, format);
    n += std::vsnprintf(line + n, sizeof line - size_t(n) - 1, format, arguments);
    va_end(arguments);
    if (n > int(sizeof line) - 2) n = int(sizeof line) - 2;
    line[n++] = '\n';
    ssize_t ignored = calls::write(STDERR_FILENO, line, size_t(n));
    (void)ignored;
    errno = saved;
}

void may_say_again(Topic topic) {
    said[int(topic)].store(false);
}

}  // namespace gemlet::hook
