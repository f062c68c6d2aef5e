#include "hook/link/connection.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "hook/link/clock.h"
#include "hook/link/mps.h"
#include "hook/link/quoted.h"
#include "hook/link/say.h"
#include "hook/link/system_calls.h"
#include "hook/link/version.h"

namespace gemlet::hook {

namespace {

// The number of our socket. It stays ours for as long as the process lives: a lost connection is only shut down,
// and the next one takes its number, so a thread that is still sending never writes to a file of the program's.
// The program may close it nevertheless (daemons close all their files); the number then no longer names the
// socket that we know.
std::atomic<int> socket_fd{-1};
std::atomic<ino_t> socket_inode{0};
std::atomic<bool> joined{false};
std::atomic<bool> is_turned_away{false};
bool joined_before = false;  // this process, in this program: with `request_mutex`
std::mutex request_mutex;
uint64_t unknown_since_ns = 0;  // the daemon has not had our group since it was last asked; 0: with `request_mutex`

char assigned_group[wire::kGroupNameBytes];  // by the daemon; written before `joined` is set

constexpr int kFarFromTheProgram = 500;  // programs count on getting the lowest numbers

ino_t inode_of(int fd) {
    struct stat s;
    return fd >= 0 && fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode) ? s.st_ino : 0;
}

bool is_ours(int fd) {
    const ino_t inode = inode_of(fd);
    return inode != 0 && inode == socket_inode.load();
}

// -1 if there is none, or the program closed it.
int our_socket() {
    if (!joined.load(std::memory_order_acquire)) return -1;
    int fd = socket_fd.load();
    return is_ours(fd) ? fd : -1;
}

bool put_in_place(int fd) {
    struct stat s;
    if (fstat(fd, &s) != 0) return false;
    int place = socket_fd.load();
    if (is_ours(place)) {
        if (dup3(fd, place, O_CLOEXEC) < 0) return false;
    } else {
        place = fcntl(fd, F_DUPFD_CLOEXEC, kFarFromTheProgram);
        if (place < 0) place = fcntl(fd, F_DUPFD_CLOEXEC, 3);  // a low limit on descriptors
        if (place < 0) return false;
    }
    socket_inode = s.st_ino;
    socket_fd = place;
    joined.store(true, std::memory_order_release);
    joined_before = true;
    return true;
}

// The devices of this connection: NVML may ask about a device before CUDA starts on it, and each device is
// attached once.
struct Known {
    unsigned char uuid[16];
    Attachment attachment;
};
std::vector<Known>& attachments_so_far() {
    static auto* all = new std::vector<Known>;
    return *all;
}

// The program may close the number and give it to a file of its own at any moment, which is then not closed here.
class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd), known_(fd >= 0 && fstat(fd, &file_) == 0) {}
    ~Descriptor() {
        if (is_same()) calls::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }
    bool is_same() const {
        struct stat now;
        return known_ && fstat(fd_, &now) == 0 && now.st_dev == file_.st_dev && now.st_ino == file_.st_ino;
    }

  protected:
    int fd_;
    struct stat file_{};
    bool known_;
};

// Memory that the daemon sent: only that is sealed.
class DaemonsMemory : public Descriptor {
  public:
    explicit DaemonsMemory(int fd) : Descriptor(fd) {
        const int seals = known_ ? fcntl(fd, F_GET_SEALS) : -1;
        known_ = seals >= 0 && (seals & F_SEAL_SHRINK);
    }
    bool is_replaced() const { return fd_ >= 0 && !is_same(); }
    // Null unless it is of this size, so that touching it is never SIGBUS.
    template <class T>
    T* map(int protection) const {
        if (!known_ || file_.st_size < off_t(sizeof(T))) return nullptr;
        void* p = mmap(nullptr, sizeof(T), protection, MAP_SHARED, fd_, 0);
        if (p == MAP_FAILED) return nullptr;
        if (is_same()) return static_cast<T*>(p);  // so it was the same all the time
        munmap(p, sizeof(T));
        return nullptr;
    }
};

// So that people see there that this process is not governed. If it does not arrive, only that is lost.
void say_leaves(int fd, const char* why) {
    wire::Message m{};
    m.header = header(wire::MessageType::kLeaves);
    copy_name(m.text, sizeof m.text, why);
    ssize_t ignored = calls::send(fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
}

// Whether something can be received within ten seconds: a daemon that is busy answers late, and a program that does
// not wait for it runs without limits. The program may close our socket, and give its number to one of its own, at
// any moment: to wait on that would be to wait for ever.
bool readable(int fd, ino_t inode) {
    constexpr uint64_t kLongest = 10'000'000'000;
    constexpr int kStep = 50;
    const uint64_t begin = now_ns();
    for (bool last = false; !last;) {
        // A signal ends the wait of a step before its time, and a program may get a thousand a second.
        last = now_ns() - begin >= kLongest;
        pollfd p{fd, POLLIN, 0};
        const int found = calls::poll(p, last ? 0 : kStep);
        if (inode == 0 || inode_of(fd) != inode) {
            errno = EBADF;
            return false;
        }
        if (found > 0) return true;
        if (found < 0 && errno != EINTR) return false;
    }
    errno = EAGAIN;
    return false;
}

constexpr uint64_t kSending = 1'000'000'000;

// Repeats what a signal interrupted, for as long as it may take without one.
template <class Call>
auto uninterrupted(Call&& call) {
    const uint64_t begin = now_ns();
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
        if (now_ns() - begin < kSending) continue;
        errno = EAGAIN;
        return result;
    }
}

bool receive(int fd, ino_t inode, wire::Message& m, int* descriptors, size_t wanted, size_t& got) {
    got = 0;
    if (!readable(fd, inode)) return false;
    iovec part{&m, sizeof m};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 6)];
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    ssize_t n;
    // A daemon that has no room says so and closes the socket without reading ours: the error comes before its word.
    bool reset = false;
    do n = calls::recvmsg(fd, header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
    if (n < 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd_in;
            std::memcpy(&fd_in, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (got < wanted)
                descriptors[got++] = fd_in;
            else
                calls::close(fd_in);
        }
    }
    return n == ssize_t(sizeof m) && m.header.magic == wire::kMagic;
}

}  // namespace

const char* joined_group() {
    return joined.load(std::memory_order_acquire) && assigned_group[0] ? assigned_group : destination().group;
}

bool connected() {
    int fd = our_socket();
    if (fd < 0) return false;
    pollfd p{fd, 0, 0};
    return calls::poll(p, 0) == 0 || !(p.revents & (POLLHUP | POLLERR | POLLNVAL));
}

bool daemon_listens() {
    const Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    copy_name(address.sun_path, sizeof address.sun_path, destination().socket);
    // One that does not answer has a queue, which may be full.
    return fd.get() >= 0 &&
           (calls::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN);
}

bool turned_away() {
    return is_turned_away.load();
}

bool closed_by_program() {
    return joined.load(std::memory_order_acquire) && !is_ours(socket_fd.load());
}

void forget_connection() {
    joined = false;
    // Closed, not shut down: it is the parent's, too.
    if (int fd = socket_fd.exchange(-1); is_ours(fd)) calls::close(fd);
    new (&request_mutex) std::mutex;
    unknown_since_ns = 0;
    joined_before = false;
}

void disconnect() {
    if (int fd = our_socket(); fd >= 0) shutdown(fd, SHUT_RDWR);
    joined = false;
}

namespace {

// What the daemon let this process have it keeps (memory/ledger.cpp).
const char* outcome() {
    return joined_before && !destination().strict ? "running on within its limits of memory, without those of time"
                                                  : consequence();
}

// Says that nobody listens, unless the program has closed the socket meanwhile (`closed`), or it was so before
// (`again`).
bool reach_daemon(int fd, ino_t inode, bool again, bool& closed) {
    const Destination& d = destination();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    copy_name(address.sun_path, sizeof address.sun_path, d.socket);
    const timeval limit{.tv_sec = kSending / 1'000'000'000, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const auto connect = [&] { return calls::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address); };
    if (fd >= 0 && uninterrupted(connect) == 0) return true;
    closed = inode != 0 && inode_of(fd) != inode;
    if (closed || again) return false;
    say_once(Topic::kDaemon,
             "no daemon at %s (%s): %s\n  hint: start one with `gemlet daemon%s`, or run the program with `gemlet "
             "run%s -- ...`",
             d.socket, std::strerror(errno), outcome(), simulate_option(), simulate_option());
    return false;
}

wire::Message hello(bool limited) {
    const Destination& d = destination();
    wire::Message m{};
    m.header = header(wire::MessageType::kHello);
    m.pid = getpid();
    // A group that is made for a program has no limits: one that had some would be rid of them.
    m.flags = d.strict ? wire::kHelloStrict : limited ? 0 : wire::kHelloCreateGroup;
    if (joined_before) m.flags |= wire::kHelloAgain;
    copy_name(m.group, sizeof m.group, d.group);
    copy_name(m.text, sizeof m.text, program_invocation_short_name);
    return m;
}

// Whether the daemon answers. Says why not, unless the program has closed the socket meanwhile, or the daemon for the
// first time: one that is killed just then answers no more than one of another version, which is still there
// (`closed`).
bool greet(int fd, ino_t inode, const wire::Message& hello, wire::Message& answer, int& unanswered, bool& closed) {
    size_t none;
    // If it cannot be sent, the daemon has said why not, and closed the socket.
    const ssize_t sent = calls::send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    errno = 0;
    if (receive(fd, inode, answer, nullptr, 0, none) && answer.header.type == wire::MessageType::kWelcome &&
        (sent == ssize_t(sizeof hello) || answer.status != wire::Status::kOk))
        return true;
    const int error = errno;
    closed = inode_of(fd) != inode || (error != EAGAIN && unanswered++ == 0);
    if (closed) return false;
    const char* socket = destination().socket;
    if (error == EAGAIN)
        say_once(Topic::kDaemon, "the daemon at %s does not answer: %s", socket, outcome());
    else
        say_once(Topic::kVersion,
                 "the daemon at %s is of another version of gemlet than this program's hook (%u): %s\n"
                 "  hint: end it with `gemlet stop%s`, then start the program again with `gemlet run%s -- ...`",
                 socket, unsigned(wire_version), outcome(), simulate_option(), simulate_option());
    return false;
}

void say_other_version(unsigned theirs) {
    const char* socket = destination().socket;
    if (theirs < wire_version)
        say_once(Topic::kVersion,
                 "the daemon at %s is of an older version of gemlet (%u) than this program's hook (%u): %s\n"
                 "  hint: replace it, while its programs run on, with `gemlet daemon%s --take-over`",
                 socket, theirs, unsigned(wire_version), outcome(), simulate_option());
    else
        say_once(Topic::kVersion,
                 "the daemon at %s is of a newer version of gemlet (%u) than this program's hook (%u): %s\n"
                 "  hint: start the program again with that version's `gemlet run%s -- ...`",
                 socket, theirs, unsigned(wire_version), outcome(), simulate_option());
}

void group_is_unknown() {
    const Destination& d = destination();
    if (!unknown_since_ns) {
        may_say_again(Topic::kDaemon);
        say_once(Topic::kDaemon,
                 "the daemon at %s does not know group '%s' any more: running on within the last limits until it "
                 "does\n  hint: make the group again with `gemlet run%s --group %s --memory SIZE -- sleep 9`, or "
                 "start the program again",
                 d.socket, d.group, simulate_option(), Quoted(d.group).text);
    }
    unknown_since_ns = now_ns();
}

// Whether the daemon lets this process into its group. Says why not.
bool is_welcome(wire::Message& answer, bool limited) {
    const Destination& d = destination();
    const unsigned theirs = answer.header.version;
    const bool agrees = theirs == wire_version && answer.status != wire::Status::kMismatch;
    is_turned_away = !agrees || answer.status != wire::Status::kOk;
    if (!agrees && (answer.status == wire::Status::kMismatch || answer.status == wire::Status::kOk)) {
        say_other_version(theirs);
        return false;
    }
    if (answer.status == wire::Status::kUnknown && limited && !d.strict) {
        group_is_unknown();
        return false;
    }
    if (answer.status != wire::Status::kOk) {
        answer.text[sizeof answer.text - 1] = 0;
        say_once(Topic::kDaemon, "the daemon refused group '%s' (%s): %s", d.group, answer.text, outcome());
        return false;
    }
    unknown_since_ns = 0;
    return true;
}

// With `request_mutex`. `unanswered`: how often a daemon closed the socket. `closed`: it was closed meanwhile, so
// nothing is known of the daemon.
bool join(bool again, bool limited, int& unanswered, bool& closed) {
    constexpr uint64_t kAskAgain = 2'000'000'000;
    closed = false;
    if (our_socket() >= 0) return true;
    if (unknown_since_ns && now_ns() - unknown_since_ns < kAskAgain) return false;
    is_turned_away = false;
    Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const ino_t inode = inode_of(fd.get());
    if (!reach_daemon(fd.get(), inode, again, closed)) return false;
    wire::Message answer{};
    if (!greet(fd.get(), inode, hello(limited), answer, unanswered, closed)) return false;
    if (!is_welcome(answer, limited)) return false;
    attachments_so_far().clear();
    answer.group[sizeof answer.group - 1] = 0;
    if (std::strcmp(assigned_group, answer.group) != 0)
        copy_name(assigned_group, sizeof assigned_group, answer.group);
    closed = inode_of(fd.get()) != inode;
    if (closed) return false;
    if (put_in_place(fd.get())) return true;
    say_leaves(fd.get(), "no descriptor is left for the connection");
    say_once(Topic::kDaemon, "no descriptor is left for the connection to the daemon (%s): %s", std::strerror(errno),
             outcome());
    return false;
}

}  // namespace

bool connect_daemon(bool again, bool limited) {
    constexpr int kTries = 8;  // a program that closes all its files does so once or twice
    std::lock_guard lock(request_mutex);
    look_at_clock();
    bool closed = true;
    int unanswered = 0;
    for (int tries = 0; closed && tries < kTries; ++tries)
        if (join(again, limited, unanswered, closed)) return true;
    if (closed)
        say_once(Topic::kDaemon, "the program closes the connection to the daemon at %s: %s", destination().socket,
                 outcome());
    return false;
}

std::optional<Attachment> attach(const unsigned char (&uuid)[16], uint32_t ordinal, const Held& held) {
    std::lock_guard lock(request_mutex);
    int fd = our_socket();
    if (fd < 0) return std::nullopt;
    for (const Known& known : attachments_so_far())
        if (std::memcmp(known.uuid, uuid, sizeof known.uuid) == 0) return known.attachment;
    wire::Message m{};
    m.header = header(wire::MessageType::kAttach);
    m.value = ordinal;
    m.slot = held.contexts;
    m.tail_ns = held.bytes;
    m.header.epoch = held.ledger;
    m.client = held.ledger ? held.slot + 1 : 0;
    m.flags = under_mps() ? wire::kUnderMps : 0;
    std::memcpy(m.uuid, uuid, sizeof m.uuid);
    const auto fail = [&](const char* why) -> std::optional<Attachment> {
        if (is_ours(fd))  // else the program has closed it, and this process joins again
            say_once(Topic::kAttach, "the daemon does not manage this device (%s): %s", why, consequence());
        return std::nullopt;
    };
    const auto fail_attached = [&](const char* why) {
        is_turned_away = true;
        if (is_ours(fd)) say_leaves(fd, why);
        auto failed = fail(why);
        if (is_ours(fd)) shutdown(fd, SHUT_RDWR);  // or the daemon would take this process for one that it governs
        return failed;
    };
    if (!send(m)) return fail("it does not take messages");
    wire::Message answer{};
    int raw[5] = {-1, -1, -1, -1, -1};
    size_t got = 0;
    bool ok = receive(fd, socket_inode.load(), answer, raw, 5, got);
    const DaemonsMemory page(raw[0]), limits(raw[1]), ledger(raw[2]), device(raw[3]), residency(raw[4]);
    answer.text[sizeof answer.text - 1] = 0;
    if (!ok || answer.header.version != wire_version || answer.header.type != wire::MessageType::kAttached)
        return fail("it does not answer");
    if (answer.status != wire::Status::kOk || answer.slot >= wire::kLedgerSlots) {
        is_turned_away = true;
        return fail(answer.text);
    }
    const bool movable = answer.flags & wire::kMovable;
    if (got < (movable ? 5 : 4)) return fail_attached("no descriptor is left for its pages");
    Attachment a{page.map<wire::ClientPage>(PROT_READ | PROT_WRITE),
                 limits.map<wire::GroupLimits>(PROT_READ),
                 ledger.map<wire::GroupLedger>(PROT_READ | PROT_WRITE),
                 nullptr,
                 false,
                 answer.header.device,
                 answer.slot,
                 (answer.flags & wire::kTellBefore) != 0};
    a.latency = (fcntl(device.get(), F_GETFL) & O_ACCMODE) == O_RDWR;
    a.device = device.map<wire::DevicePage>(a.latency ? PROT_READ | PROT_WRITE : PROT_READ);
    if (movable) a.residency = residency.map<wire::ResidencyPage>(PROT_READ | PROT_WRITE);
    if (!a.page || !a.limits || !a.ledger || !a.device || (movable && !a.residency)) {
        const DaemonsMemory* sent[] = {&page, &limits, &ledger, &device, &residency};
        if (std::none_of(std::begin(sent), std::end(sent), [](auto* one) { return one->is_replaced(); }))
            return fail_attached("its pages cannot be mapped");
        // As if the program had taken the socket's number, too: this process joins again.
        socket_inode = 0;
        shutdown(fd, SHUT_RDWR);
        return std::nullopt;
    }
    Known& known = attachments_so_far().emplace_back(Known{{}, a});
    std::memcpy(known.uuid, uuid, sizeof known.uuid);
    return a;
}

bool send(const wire::Message& message) {
    int fd = our_socket();
    if (fd < 0) return false;
    // This is only for the daemon's log, and a program that retries must not wait for a stopped daemon.
    const int dispensable = message.header.type == wire::MessageType::kRefused ? MSG_DONTWAIT : 0;
    const ssize_t n =
        uninterrupted([&] { return calls::send(fd, &message, sizeof message, MSG_NOSIGNAL | dispensable); });
    // A request or a stop that got lost would be awaited for ever, so a new connection starts afresh.
    if (n < 0 && !dispensable) shutdown(fd, SHUT_RDWR);
    return n == ssize_t(sizeof message);
}

}  // namespace gemlet::hook
