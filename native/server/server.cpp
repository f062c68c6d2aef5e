#include "server/server.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "futex.h"
#include "machine/clock.h"
#include "server/process.hpp"
#include "server/round.hpp"

namespace gemlet::server {

namespace {

// Python's, the listeners' and the devices', the API's connections (api.py), the launchers (launchers.py), programs
// outside (audit.py).
constexpr size_t kOtherFiles = 128 + 256 + 1024 + 256;
constexpr size_t kMaxDevices = 64;  // that clients have named
constexpr uid_t kNobody = 65534;    // of the kernel, and of daemon/processes.py

Descriptor checked(int fd, const char* what) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
    return Descriptor(fd);
}

// As many as the process may open. Raises the limit as far as it goes: nothing here uses select(2).
size_t most_files() {
    rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 1024;
    if (files.rlim_cur < files.rlim_max) {
        const rlimit before = files;
        files.rlim_cur = files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0) files = before;
    }
    return size_t(files.rlim_cur);
}

// A connection takes two. A use may take six: for two pages, and for a ledger of its own with its limits, which are
// kept in place and passed on.
size_t fewer_than_files(size_t wanted, size_t files) {
    return std::min(wanted, (files - std::min(kOtherFiles, files / 2)) / 8);
}

}  // namespace

Nanoseconds Server::clock() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return Nanoseconds(t.tv_sec) * 1'000'000'000 + t.tv_nsec - ahead_from_the_begin_ns();
}

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      connections_(fewer_than_files(options_.connections, most_files()), options_.of_one),
      uses_(fewer_than_files(options_.uses, most_files()), options_.of_one),
      named_devices_(kMaxDevices),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      timer_(checked(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create")),
      wake_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      events_ready_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)),
      inquiries_(wake_.get()),
      trace_(options_.trace),
      gangs_(options_.arbiter),
      host_memory_(options_.host_memory) {
    Arbiter probe(options_.policy, options_.arbiter);  // an unknown policy is the caller's mistake, now and not later
    watch(timer_.get(), kTimer);
    watch(wake_.get(), kWake);
}

Server::~Server() {
    stop();
}

void Server::watch(int fd, uint64_t tag) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = tag;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

void Server::listen(const std::string& path, std::optional<std::string> group, mode_t mode) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        throw std::invalid_argument("socket path is empty or longer than 107 bytes: " + path);
    path.copy(address.sun_path, path.size());
    std::lock_guard lock(mutex_);
    ForeignSocket fd;
    if (auto before = sockets_before_.extract(path)) {
        fd = std::move(before.mapped());
    } else {
        fd = ForeignSocket(
            checked(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket").release());
        if (options_.refuse_files) refuse_files(fd.get());
        unlink(path.c_str());
        const mode_t mask = umask(0777 & ~mode);
        const int bound = bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
        const int error = errno;
        umask(mask);
        if (bound != 0 || ::listen(fd.get(), 512) != 0)
            throw std::system_error(bound != 0 ? error : errno, std::generic_category(), "cannot listen on " + path);
    }
    auto listener = std::make_unique<Listener>(Listener{std::move(fd), path, std::move(group)});
    auto place = std::find(listeners_.begin(), listeners_.end(), nullptr);
    if (place == listeners_.end()) place = listeners_.emplace(place);
    watch(listener->socket.get(), kListener | uint64_t(place - listeners_.begin()));
    *place = std::move(listener);
}

bool Server::unlisten(const std::string& path) {
    std::lock_guard lock(mutex_);
    auto found = std::find_if(listeners_.begin(), listeners_.end(),
                              [&](const auto& listener) { return listener && listener->path == path; });
    if (found == listeners_.end()) return false;
    unlink(path.c_str());
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, (*found)->socket.get(), nullptr);
    found->reset();  // its place stays: the others are known to epoll by theirs
    return true;
}

void Server::start() {
    std::lock_guard lock(mutex_);
    if (thread_.joinable()) return;
    stopping_ = false;
    for (const auto& [path, socket] : sockets_before_) unlink(path.c_str());  // nobody listens there any more
    sockets_before_.clear();
    for (const auto& device : devices_) {
        device->residency.set_host(host_memory_);
        device->residency.bind_expected();
    }
    await_inquiries();
    next_round_ = clock();
    begun_ = ticks_since_boot();
    arm_timer();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Server::halt() {
    stopping_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
}

void Server::stop() {
    halt();
    std::lock_guard lock(mutex_);
    // Nobody has to wait until it notices: all may run, but for those that do not without a daemon.
    for (auto& device : devices_)
        for (auto& [id, attachment] : device->attachments) {
            const bool strict = attachment->client->strict.value_or(false);
            attachment->slot.leave();
            attachment->let_go(strict ? wire::TokenState::kBlocked : wire::TokenState::kRun);
        }
    for (auto& device : devices_) device->attachments.clear();
    clients_.clear();
    for (auto& [id, absent] : absent_) absent.slot.leave();
    absent_.clear();
    for (auto& listener : listeners_)
        if (listener) unlink(listener->path.c_str());
    listeners_.clear();
}

void Server::wake() {
    uint64_t one = 1;
    ssize_t ignored = write(wake_.get(), &one, sizeof one);
    (void)ignored;
}

void Server::arm_timer() {
    Nanoseconds next = listened_ ? agree_at_ : kNever;
    next = std::min(next, gangs_.next_event());
    for (auto& device : devices_)
        next = std::min({next, device->arbiter->next_event(), device->residency.next_event()});
    if (!absent_.empty()) next = std::min(next, look_at_);
    if (awaits_lost()) next = std::min(next, next_round_);
    itimerspec when{};
    if (next != kNever) {
        next = std::max<Nanoseconds>(next + ahead_from_the_begin_ns(), 1);
        when.it_value = {time_t(next / 1'000'000'000), long(next % 1'000'000'000)};
    }
    timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void Server::tick() {
    Nanoseconds now = clock();
    for (auto& device : devices_) {
        if (std::min(device->arbiter->next_event(), device->residency.next_event()) > now) continue;
        read_progress(*device);
        device->arbiter->tick(now);
        device->residency.tick(now);
        settle_residency(*device, now);
        apply(*device, now);
    }
    if (gangs_.next_event() <= now && !devices_.empty()) {
        for (auto& device : devices_) read_progress(*device);
        apply(*devices_.front(), now);
    }
    agree(now);
    look_at_absent(now);
    settle_lost(now);
}

Server::Received Server::receive_safely(Client& client) {
    try {
        return receive(client);
    } catch (const std::exception& error) {  // out of memory or descriptors: this client's problem alone
        ++denied_;
        emit("denied", client, error.what());
        note_unmanaged(client, client.group, error.what());
        return Received::kEnd;
    }
}

// Says why, so that the program does not take the daemon for one of another version.
void Server::turn_away(Client& client, const std::string& why) {
    ++denied_;
    wire::Message message{};
    message.header.type = wire::MessageType::kWelcome;
    answer(client, message, wire::Status::kFull, why);
    client.socket = ForeignSocket();  // there may be none left to look at the process
    client.command = command_of(client.pid);
    note_unmanaged(client, client.fixed.value_or(""), why);
}

// Who the kernel says it is. False: it does not say.
bool Server::identify(Client& client, const std::optional<std::string>& group) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(client.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        ++denied_;
        return false;
    }
    client.pid = peer.pid;
    client.uid = peer.uid;
    client.refuses_files = options_.refuse_files && refuse_files(client.socket.get());
    client.fixed = group;
    client.since = clock();
    // Root in a container is not root of this machine.
    client.administrator = !group && (peer.uid == 0 || peer.uid == geteuid()) &&
                           is_near(process_of(client.socket.get(), peer.pid).get(), peer.pid);
    client.acts_as = peer.uid == 0 && !client.administrator ? kNobody : peer.uid;
    client.who = group ? who_of_group(*group) : "user " + std::to_string(accounts_.of(client.acts_as));
    return true;
}

void Server::accept_client(Listener& listener) try {
    auto client = std::make_unique<Client>();
    client->socket = ForeignSocket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client->socket.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
        // Turn the caller away with the descriptor kept for this: else it would wait, and epoll would spin.
        spare_ = Descriptor();
        client->socket = ForeignSocket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (client->socket.get() >= 0 && identify(*client, listener.group))
            turn_away(*client, "the daemon may not open more files");
        client->socket = ForeignSocket();
        spare_ = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
        return;
    }
    if (client->socket.get() >= 0 && identify(*client, listener.group)) enter(std::move(client));
} catch (const std::exception&) {  // out of memory or of places in epoll: the caller is turned away
    ++denied_;
}

// False: there is no room for it, which it has been told.
bool Server::enter(std::unique_ptr<Client> client) {
    client->connection = FairPlace::in(connections_, client->who, client->administrator);
    if (!client->connection) {
        turn_away(*client, client->who + " has " + std::to_string(connections_.held(client->who)) + " of " +
                               std::to_string(connections_.places(client->who)) +
                               " connections to the daemon already: the others' are kept for them");
        return false;
    }
    // After four thousand million connections the numbers begin anew, and old clients may still be there.
    while (next_client_ == 0 || clients_.contains(next_client_)) ++next_client_;
    client->id = next_client_++;
    client->command = command_of(client->pid);
    // The socket alone would not tell of a death while a forked child still holds it.
    errno = 0;
    client->process = process_of(client->socket.get(), client->pid);
    if (client->process.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
        turn_away(*client, "the daemon may not open more files");
        return false;
    }
    if (client->process.get() >= 0) watch(client->process.get(), kProcess | client->id);
    const uint32_t id = client->id;
    inquiries_.ask(client->who, kSocket | id, client->pid);
    clients_[id] = std::move(client);
    return true;
}

// Clients are heard once it is known who they are.
void Server::take_answers() {
    for (const auto& [tag, look] : inquiries_.take()) {
        const auto index = uint32_t(tag);
        const uint64_t kind = tag & ~0xffffffffull;
        if (kind == kAbsent) looked_at_absent(index, look);
        if (kind == kUnmanaged) {
            unmanaged_looked_at_.erase(pid_t(index));
            if (look) unmanaged_.looked_at(pid_t(index), look->started);
        }
        if (kind != kSocket) continue;
        const auto found = clients_.find(index);
        if (found == clients_.end()) continue;
        Client& client = *found->second;
        client.started = look ? look->started : 0;
        client.image = look ? look->image : 0;
        try {
            watch(client.socket.get(), kSocket | client.id);
        } catch (const std::system_error&) {
            drop(client, "left");
        }
    }
}

void Server::drop(Client& client, const char* why) {
    const Nanoseconds now = clock();
    for (auto& [device, attachment] : std::exchange(client.places, {})) {
        note(*attachment, "leaves", 0);
        Traced left = traced(*device, *attachment);
        left.state = "gone";
        trace_.left(client.who, std::move(left));
        count(*device, *attachment);
        read_claims(*device);
        const OnDevice has = on_device(*device, *attachment);
        device->arbiter->remove_client(attachment->id, now);
        device->residency.leave(attachment->id, now);
        if (client.strict.value_or(false))
            attachment->let_go(wire::TokenState::kBlocked);
        else
            attachment->page->attached = 0;  // it runs on, or waits until it notices
        const uint32_t contexts =
            attachment->page->contexts.load() == attachment->contexts ? attachment->contexts : 0;
        Absent& absent =
            await({device, client.group, client.pid, client.uid, client.started, client.image, client.command,
                   client.process.duplicate(), client.who, client.administrator, std::move(attachment->use), now,
                   contexts, attachment->id, has, std::move(attachment->slot)})
                .second;
        absent.unconfirmed = attachment->unconfirmed;
        absent.presumed = attachment->presumed;
        device->attachments.erase(attachment->id);
        settle_residency(*device, now);
        apply(*device, now);
    }
    if (!client.group.empty()) emit("leave", client, why);
    inquiries_.forget(kSocket | client.id);
    // What is closed is watched on while its duplicates are open, be it for the moment of close_apart(), in which a
    // look from here could become the last to have it open.
    for (const int fd : {client.process.get(), client.socket.get()})
        if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    const std::string group = client.group;
    if (auto found = groups_.find(group); found != groups_.end()) --found->second.clients;
    clients_.erase(client.id);
    forget_if_unused(group);
}

void Server::run() {
    pthread_setname_np(pthread_self(), "gemlet-arbiter");
    prctl(PR_SET_TIMERSLACK, 1);
    std::array<epoll_event, 1024> ready;
    std::vector<uint32_t> senders;
    while (!stopping_) {
        int n = epoll_wait(epoll_.get(), ready.data(), int(ready.size()), -1);
        if (n < 0 && errno != EINTR) break;
        mutex_.lock_after_others();
        std::lock_guard lock(mutex_, std::adopt_lock);
        senders.clear();
        const Round round(mutex_, clock() + kRound);
        bool any_ended = false;
        for (int i = 0; i < n; ++i) {
            uint64_t kind = ready[size_t(i)].data.u64 & ~0xffffffffull;
            auto index = uint32_t(ready[size_t(i)].data.u64);
            uint64_t count;
            if (kind == kTimer || kind == kWake) {
                ssize_t ignored = read(kind == kTimer ? timer_.get() : wake_.get(), &count, sizeof count);
                (void)ignored;
            } else if ((kind == kAbsent || kind == kProcess) && any_ended && round.is_over(clock())) {
                continue;  // a thousand may end at once: the rest is still there in the next round
            } else if (kind == kListener) {
                if (index < listeners_.size() && listeners_[index]) accept_client(*listeners_[index]);
            } else if (kind == kAbsent) {
                any_ended = true;
                end_absent(index);
            } else if (auto found = clients_.find(index); found != clients_.end()) {
                Client& client = *found->second;
                if (kind == kProcess) {
                    any_ended = true;
                    drop(client, "exit");
                } else {
                    senders.push_back(index);
                }
            }
        }
        take_answers();
        receive_from(senders);
        tick();
        arm_timer();
    }
}

}  // namespace gemlet::server
