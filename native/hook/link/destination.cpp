#include "hook/link/destination.h"

#include <dlfcn.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "hook/link/system_calls.h"

namespace gemlet::hook {

namespace {

constexpr unsigned kPatienceSeconds = 10;

// Beside the library where a share's containers have it mounted: the share's socket in the first line, in the second
// the seconds to wait for a daemon. The environment is the program's own to change; this file is not.
constexpr char kShareSuffix[] = ".share";

std::string share_file() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&share_file), &info) == 0 || !info.dli_fname) return "";
    return std::string(info.dli_fname) + kShareSuffix;
}

// False where there is no such file. One that cannot be read names no daemon, so that a strict program stops.
bool read_share(Destination& d) {
    const std::string path = share_file();
    if (path.empty()) return false;
    const int fd = calls::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return false;
    char text[sizeof d.socket + 16] = "";
    if (fd >= 0) {
        const ssize_t n = calls::read(fd, text, sizeof text - 1);
        text[n > 0 ? n : 0] = 0;
        calls::close(fd);
    }
    const size_t end = std::strcspn(text, "\n");
    if (const int seconds = text[end] ? std::atoi(text + end + 1) : 0; seconds > 0) d.patience_s = unsigned(seconds);
    text[end] = 0;
    copy_name(d.socket, sizeof d.socket, *text ? text : path.c_str());
    d.strict = true;
    return true;
}

void read_socket(Destination& d, const char* gemini_group) {
    const char* path = std::getenv("GEMLET_SOCKET");
    const char* gemini_dir = std::getenv("GEMINI_IPC_DIR");
    if (path && *path) {
        copy_name(d.socket, sizeof d.socket, path);
    } else if ((gemini_dir && *gemini_dir) || (gemini_group && *gemini_group)) {
        // Gemini's second generation: one socket a group in a common folder.
        std::string named = std::string(gemini_dir && *gemini_dir ? gemini_dir : "/tmp/gemini/ipc") + "/" + d.group;
        copy_name(d.socket, sizeof d.socket, named.c_str());
    }
}

// "memory=BYTES,max=MILLIONTHS", either of them alone, or nothing. No bytes are a limit, too.
void read_limits(Destination& d) {
    const char* text = std::getenv("GEMLET_LIMITS");
    const auto value = [text](const char* name) -> std::optional<uint64_t> {
        const char* found = text ? std::strstr(text, name) : nullptr;
        if (!found || !std::isdigit(static_cast<unsigned char>(found[std::strlen(name)]))) return std::nullopt;
        return std::strtoull(found + std::strlen(name), nullptr, 10);
    };
    d.memory_limit = value("memory=").value_or(wire::kNoLimit);
    const uint64_t millionths = value("max=").value_or(1'000'000);
    if (millionths >= 1'000'000) return;
    d.agreed = wire::agreed_word(0, uint32_t(std::max(millionths * wire::kAgreedParts / 1'000'000, uint64_t{1})));
}

Destination read_destination() {
    Destination d{};
    read_limits(d);
    d.patience_s = kPatienceSeconds;
    const char* strict = std::getenv("GEMLET_STRICT");
    d.strict = strict && *strict && std::strcmp(strict, "0") != 0;
    d.quiet = std::getenv("GEMLET_QUIET") != nullptr;
    const char* machine = std::getenv("GEMLET_SIM_DIR");
    d.simulated = machine && *machine;
    const char* group = std::getenv("GEMLET_GROUP");
    const char* gemini_group = std::getenv("GEMINI_GROUP_NAME");
    if (!group || !*group) group = gemini_group;
    char host[wire::kGroupNameBytes] = "";
    if (!group || !*group) {
        gethostname(host, sizeof host - 1);  // Gemini's default name
        group = host;
    }
    copy_name(d.group, sizeof d.group, group);
    if (!read_share(d)) read_socket(d, gemini_group);
    return d;
}

// As it was when the program was started: what the program makes of its environment is its own business.
Destination at_start{};
[[gnu::constructor]] void read_at_start() {
    at_start = read_destination();
}

}  // namespace

void copy_name(char* to, size_t size, const char* from) {
    size_t n = from ? strnlen(from, size - 1) : 0;
    std::memcpy(to, from, n);
    std::memset(to + n, 0, size - n);
}

const Destination& destination() {
    // A program that was started outside may still set the variables before it starts CUDA.
    static const Destination d = at_start.socket[0] ? at_start : read_destination();
    return d;
}

bool is_started_in_group() {
    return at_start.socket[0] != 0;
}

bool has_limits(const Destination& d) {
    return d.memory_limit != wire::kNoLimit || d.agreed != 0;
}

const char* consequence() {
    const auto strict = [] {
        return "trying for " + std::to_string(destination().patience_s) +
               " s, then refusing to run without it (--strict)";
    };
    static const auto* text =
        new std::string(destination().strict        ? strict()
                        : has_limits(destination()) ? "keeping to the limits that it was started with"
                                                    : "running without limits");
    return text->c_str();
}

}  // namespace gemlet::hook
