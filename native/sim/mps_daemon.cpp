#include "mps_daemon.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "clock.hpp"
#include "machine_folder.hpp"
#include "mps_pipe.hpp"
#include "mps_server.hpp"

namespace gemlet::sim {
namespace {

constexpr const char* kDefaultLogs = "/var/log/nvidia-mps";

std::string log_directory() {
    const char* configured = std::getenv("CUDA_MPS_LOG_DIRECTORY");
    return configured != nullptr && *configured != '\0' ? configured : kDefaultLogs;
}

std::string absolute(const std::string& path) {
    return std::filesystem::absolute(path).string();
}

[[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(what + ": " + std::strerror(errno));
}

// A log in NVIDIA's format. Without a file it says nothing.
class Log {
  public:
    Log(const std::string& path, const char* who)
        : fd_(open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644)), who_(who) {}
    bool valid() const { return fd_.valid(); }
    void line(const std::string& text) const {
        timespec now{};
        clock_gettime(CLOCK_REALTIME, &now);
        tm local{};
        localtime_r(&now.tv_sec, &local);
        char when[64];
        const size_t length = std::strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
        std::snprintf(when + length, sizeof when - length, ".%03ld", now.tv_nsec / 1'000'000);
        const std::string whole =
            std::string("[") + when + " " + who_ + " " + std::to_string(getpid()) + "] " + text + "\n";
        if (write(fd_.get(), whole.data(), whole.size()) < 0) { /* a full disk does not end the daemon */
        }
    }

  private:
    Descriptor fd_;
    const char* who_;
};

std::string command_line(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    std::string text;
    std::getline(file, text, '\0');
    return text;
}

}  // namespace

struct MpsDaemon::Parts {
    struct Connection {
        Descriptor socket;
        Descriptor process;  // pidfd of a client: its socket may live on in a child
        pid_t pid = 0;
        bool client = false;
    };

    std::string directory;
    Descriptor lock;  // the pid file; locked as long as the daemon lives
    Descriptor listeners[2];
    Descriptor signals;
    std::optional<Log> control_log, server_log;
    std::optional<MpsServer> server;
    std::map<uint32_t, Connection> connections;
    std::vector<uint32_t> ended;  // closed after the round of poll(2) in which they ended
    uint32_t next_id = 0;
    bool quitting = false;
    Nanoseconds deadline = kNever;

    bool taken = false;  // the files in `directory` are ours

    Parts() = default;
    ~Parts() {  // before the connections end: a client that waits for that finds the directory empty
        if (!taken) return;
        for (const char* name : {kMpsControl, kMpsMarker, kMpsPid}) unlink((directory + "/" + name).c_str());
    }
    Parts(const Parts&) = delete;
    Parts& operator=(const Parts&) = delete;

    void take_directory();
    void open_logs();
    void accept_from(const Descriptor& listener);
    void hear(uint32_t id);
    void bury(uint32_t id);  // its process ended
    void command(uint32_t id, const std::string& text);
    void quit(uint32_t id, const std::vector<std::string>& words);
    void close_ended();
    bool over() const { return quitting && (!server->has_clients() || monotonic_now() >= deadline); }
};

void MpsDaemon::Parts::take_directory() {
    directory = absolute(mps_pipe_directory());
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    const std::string path = directory + "/" + kMpsPid;
    for (;;) {
        lock = Descriptor(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
        if (!lock.valid()) fail(path);
        if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
            throw std::runtime_error("An instance of this daemon is already running");
        // One that just ended may have removed the file that we opened.
        struct stat ours{}, there{};
        fstat(lock.get(), &ours);
        if (stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino) break;
    }
    taken = true;
    const char* names[] = {kMpsControl, kMpsMarker};
    for (int i = 0; i < 2; ++i) {
        listeners[i] = mps_listen(directory, names[i]);
        if (!listeners[i].valid()) fail(directory + "/" + names[i]);
    }
}

void MpsDaemon::Parts::open_logs() {
    const std::string folder = absolute(log_directory());
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    control_log.emplace(folder + "/control.log", "Control");
    server_log.emplace(folder + "/server.log", "Server");
    // NVIDIA's default is root's; without logs there we go on.
    if (!control_log->valid() && folder != kDefaultLogs) fail(folder + "/control.log");
}

MpsDaemon::MpsDaemon() : parts_(std::make_unique<Parts>()) {
    parts_->take_directory();
    parts_->open_logs();
}

MpsDaemon::~MpsDaemon() = default;

void MpsDaemon::announce() {
    Parts& p = *parts_;
    const std::string pid = std::to_string(getpid()) + "\n";
    if (ftruncate(p.lock.get(), 0) != 0 || pwrite(p.lock.get(), pid.data(), pid.size(), 0) < 0) fail(kMpsPid);
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    p.signals = Descriptor(signalfd(-1, &set, SFD_CLOEXEC));
    MpsServer::Hooks hooks{
        .log = [&p](const std::string& line) { p.server_log->line(line); },
        .tell = [&p](uint32_t id, const std::string& text) { mps_send(p.connections.at(id).socket.get(), text); },
        .hang_up =
            [&p](uint32_t id, const std::string& text) {
                if (!text.empty()) mps_send(p.connections.at(id).socket.get(), text);
                p.ended.push_back(id);
            },
    };
    p.server.emplace(getpid(), canonical_folder(machine_folder()), std::move(hooks));
    p.control_log->line("Starting control daemon using socket " + p.directory + "/" + kMpsControl);
    p.control_log->line("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" +
                        p.directory);
    p.control_log->line("This daemon is simulated: it serves the machine in " + machine_folder());
}

void MpsDaemon::run() {
    Parts& p = *parts_;
    while (!p.over()) {
        std::vector<pollfd> waiting{
            {p.signals.get(), POLLIN, 0}, {p.listeners[0].get(), POLLIN, 0}, {p.listeners[1].get(), POLLIN, 0}};
        std::vector<uint32_t> whose(waiting.size());
        for (const auto& [id, connection] : p.connections) {
            waiting.push_back({connection.socket.get(), POLLIN, 0});
            whose.push_back(id);
            if (!connection.process.valid()) continue;
            waiting.push_back({connection.process.get(), POLLIN, 0});
            whose.push_back(id);
        }
        int timeout = -1;
        if (p.deadline != kNever) {
            const Nanoseconds now = monotonic_now();
            timeout = p.deadline > now ? static_cast<int>((p.deadline - now) / 1'000'000 + 1) : 0;
        }
        if (poll(waiting.data(), waiting.size(), timeout) < 0 && errno != EINTR) fail("poll");
        if (waiting[0].revents != 0) break;
        for (size_t i = 3; i < waiting.size(); ++i) {
            const auto known = p.connections.find(whose[i]);
            if (waiting[i].revents == 0 || known == p.connections.end()) continue;
            if (waiting[i].fd == known->second.socket.get())
                p.hear(whose[i]);
            else
                p.bury(whose[i]);
        }
        p.close_ended();
        for (const int i : {1, 2})
            if (waiting[static_cast<size_t>(i)].revents != 0) p.accept_from(p.listeners[i - 1]);
    }
    p.server->shut_down();
    p.close_ended();
    p.control_log->line("Exit");
}

void MpsDaemon::Parts::accept_from(const Descriptor& listener) {
    Connection connection;
    connection.socket = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.socket.valid()) return;
    ucred peer{};
    socklen_t size = sizeof peer;
    getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
    if (peer.uid != getuid() && peer.uid != 0) return;  // a simulated machine belongs to one user
    connection.pid = peer.pid;
    connections.emplace(next_id++, std::move(connection));
}

void MpsDaemon::Parts::hear(uint32_t id) {
    Connection& connection = connections.at(id);
    const auto message = mps_receive(connection.socket.get(), /*wait=*/false);
    if (!message) return ended.push_back(id);
    if (connection.client) return server->hear(id, *message);
    if (!message->starts_with("client ")) return command(id, *message);
    const std::string answer = server->admit(id, {connection.pid, command_line(connection.pid), {}},
                                             message->substr(std::strlen("client ")));
    connection.client = answer.starts_with("welcome");
    if (connection.client)
        connection.process = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, connection.pid, 0)));
    control_log->line("NEW CLIENT " + std::to_string(connection.pid) + ": " + answer);
    if (!mps_send(connection.socket.get(), answer)) ended.push_back(id);
}

void MpsDaemon::Parts::bury(uint32_t id) {
    // Its last words count: they may be of a fault.
    while (const auto message = mps_receive(connections.at(id).socket.get(), /*wait=*/false))
        server->hear(id, *message);
    ended.push_back(id);
}

void MpsDaemon::Parts::command(uint32_t id, const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    control_log->line("Cmd:" + text);
    if (words.empty()) {
        mps_send(connections.at(id).socket.get(), "\n");
    } else if (words[0] == "quit") {
        quit(id, words);
    } else {
        const std::string answer = server->command(words);
        if (!answer.empty()) control_log->line(answer);
        mps_send(connections.at(id).socket.get(), answer + "\n");
    }
}

void MpsDaemon::Parts::quit(uint32_t id, const std::vector<std::string>& words) {
    const bool limited = words.size() == 3 && words[1] == "-t";
    char* end = nullptr;
    const long seconds = limited ? std::strtol(words[2].c_str(), &end, 10) : 0;
    if ((words.size() != 1 && !limited) || (limited && (*end != '\0' || seconds < 0))) {
        mps_send(connections.at(id).socket.get(), "Usage: quit [-t SECONDS]\n");
        return;
    }
    quitting = true;
    server->close_doors();
    if (limited) deadline = monotonic_now() + static_cast<Nanoseconds>(seconds) * 1'000'000'000u;
    // Answered by the end of the connection, which is that of the daemon, unless clients may keep it for ever.
    if (server->has_clients() && !limited) mps_send(connections.at(id).socket.get(), "\n");
}

void MpsDaemon::Parts::close_ended() {
    while (!ended.empty()) {
        const uint32_t id = ended.back();
        ended.pop_back();
        const auto known = connections.find(id);
        if (known == connections.end()) continue;
        const bool client = known->second.client;
        connections.erase(known);
        if (client) server->gone(id);
    }
}

}  // namespace gemlet::sim
