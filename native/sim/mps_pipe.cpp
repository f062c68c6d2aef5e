#include "mps_pipe.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace gemlet::sim {
namespace {

// Socket paths are limited to 107 bytes, but a directory that is open has a short name.
struct Address {
    Descriptor folder;
    sockaddr_un value{};
    Address(const std::string& directory, const char* name)
        : folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
        value.sun_family = AF_UNIX;
        std::snprintf(value.sun_path, sizeof value.sun_path, "/proc/self/fd/%d/%s", folder.get(), name);
    }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

}  // namespace

std::string mps_pipe_directory() {
    const char* configured = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
    return configured != nullptr && *configured != '\0' ? configured : "/tmp/nvidia-mps";
}

std::string canonical_folder(const std::string& folder) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::weakly_canonical(std::filesystem::absolute(folder), error);
    return error ? folder : path.string();
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    if (this != &other) {
        reset();
        fd_ = other.release();
    }
    return *this;
}

int Descriptor::release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
}

void Descriptor::reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
}

Descriptor mps_listen(const std::string& directory, const char* name) {
    const Address address(directory, name);
    if (!address.folder.valid()) return {};
    Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    unlinkat(address.folder.get(), name, 0);
    if (bind(fd.get(), address.get(), sizeof address.value) != 0 || listen(fd.get(), 64) != 0) return {};
    return fd;
}

Descriptor mps_connect(const std::string& directory, const char* name) {
    const Address address(directory, name);
    if (!address.folder.valid()) return {};
    Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    while (connect(fd.get(), address.get(), sizeof address.value) != 0)
        if (errno != EINTR) return {};
    return fd;
}

bool mps_send(int fd, const std::string& message) {
    return send(fd, message.data(), message.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

std::optional<std::string> mps_receive(int fd, bool wait) {
    const auto get = [fd, wait](void* to, size_t room, int flags) {
        ssize_t length = 0;
        do length = recv(fd, to, room, flags | MSG_TRUNC | (wait ? 0 : MSG_DONTWAIT));
        while (length < 0 && errno == EINTR);
        return length;
    };
    const ssize_t length = get(nullptr, 0, MSG_PEEK);
    if (length <= 0) return std::nullopt;
    std::string text(static_cast<size_t>(length), '\0');
    if (get(text.data(), text.size(), 0) != length) return std::nullopt;
    return text;
}

std::optional<double> parse_percentage(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(value > 0) || value > 100) return std::nullopt;
    return value;
}

}  // namespace gemlet::sim
