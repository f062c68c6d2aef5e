// Real time around the arbiter: sockets, pages, futexes, deadlines. One thread, the only one with a clock; Python
// calls in from others and holds `mutex_` for microseconds, so a hand-over never waits for Python.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arbiter/gangs.hpp"
#include "server/accounts.hpp"
#include "server/fair_limit.hpp"
#include "server/inquiries.hpp"
#include "server/registry.hpp"
#include "server/unmanaged.hpp"
#include "server/yielding_mutex.hpp"

namespace gemlet::server {

struct ServerOptions {
    Parameters arbiter;
    std::string policy = "fair";
    // A holder's end is told when no more than this is in flight, so that the next one's first launch arrives as the
    // device runs dry: about what two wake-ups of sleeping CPUs take.
    Nanoseconds lead = 400'000;
    size_t trace = 1 << 17;  // steps to remember; a machine with many requests makes some thousands a second
    // The most connections, and clients' uses of devices; fewer where the process may not open as many files.
    size_t connections = 4096, uses = 16'384;
    // Of these, those of one user who is no administrator, or of one group's socket.
    size_t of_one = 1024;
    // Bytes of the host that clients' memory may move to, of all devices together.
    uint64_t host_memory = arbiter::kUnlimited;
    arbiter::ResidencyParameters residency;
    // How long memory may be missing from the driver's account before it does not count against others' any more.
    Nanoseconds claim_grace = 3'000'000'000;
    // For how many tenths of a second members of a daemon that was killed are waited for; see LostLedger.
    int lost_rounds = 20;
    // Whether sockets refuse descriptors where the kernel can do that; else messages that bring some are not
    // received.
    bool refuse_files = true;
};

struct MovableView {
    ResidencyUsage usage;
    uint64_t moved_out, moved_in, dropped, pinned;
};

struct ClientView {
    uint32_t id;
    pid_t pid;
    uid_t uid;
    std::string command;
    const char* state;
    uint64_t memory, untracked, launches;
    uint32_t contexts;
    bool mps;
    Nanoseconds since;
    std::optional<MovableView> movable;
    uint64_t work_ns, samples, busy_samples, awaited_samples;  // as its page says
};

// A process of which the daemon before has told, and which has not come yet.
struct AwaitedView {
    pid_t pid;
    uint64_t memory;
    uint32_t contexts;
};

struct GroupView {
    GroupUsage usage;
    GroupSettings settings;
    uint64_t memory_used, untracked;
    bool made_by_client;
    std::vector<ClientView> clients;
    std::vector<AwaitedView> awaited = {};
    std::vector<std::pair<size_t, uint64_t>> latencies = {};  // bounds that were needed, and how often
    Nanoseconds latency_sum = 0;
    // Of all its clients and awaited processes, also where they are not listed.
    size_t programs = 0, expected = 0;
    Done done = {};
    uint64_t swapped = 0;                // bytes on the host
    bool awaits_memory = false;          // some client has work, and its memory is not on the device
    std::string memory_reason = {};      // why it waits, where that is the memory
    std::vector<pid_t> beside_mps = {};  // if it has a part of the multiprocessors: those not under MPS, as they say
};

struct DeviceView {
    Uuid uuid;
    int index;
    std::string policy;
    uint64_t ignored;
    std::vector<GroupView> groups;
    std::optional<uint64_t> capacity = {};
    uint64_t held = 0, host_promised = 0;  // bytes clients have on the device, and may have to have on the host
    uint64_t context_estimate = 0;         // bytes one more context will take; 0 before one was measured
};

struct ServerView {
    Nanoseconds now;
    uint64_t denied;
    std::vector<DeviceView> devices;
    std::vector<GroupSettings> groups;
    std::vector<Unmanaged> unmanaged = {};
};

class Server {
  public:
    explicit Server(ServerOptions options);  // throws std::invalid_argument, std::system_error
    ~Server();

    // A socket for clients; `group` fixes the group of every client that connects through it.
    void listen(const std::string& path, std::optional<std::string> group, mode_t mode);
    bool unlisten(const std::string& path);  // clients that came through it stay; false if there is no such socket
    void add_device(const Uuid& uuid, int index, const std::string& policy, uint64_t context_estimate);
    // `bytes` of the device for all its clients; none: as much as it has. For clients that come from now on.
    void set_host_memory(uint64_t bytes);
    // Among whom connections, devices, slots and groups of programs that come from now on are shared.
    void set_accounts(std::vector<UidRange> ranges);
    // `max_wait`: none keeps it as it is.
    void set_capacity(const Uuid& uuid, std::optional<uint64_t> bytes, std::optional<Nanoseconds> max_wait);
    // Creates a group, or changes a live one. `device`: index of the only one on which it has its minimum. Throws
    // std::invalid_argument.
    void set_group(const GroupSettings& settings, std::optional<int> device = {});
    // Its programs may use these devices alone, those that come from now on; none: every one. False if there is no
    // such group.
    bool bind_group(const std::string& name, std::vector<Uuid> devices);
    bool remove_group(const std::string& name);  // false while it has clients, or awaits some
    // The user whose client made a group that nobody has set since; nullopt if there is no such group.
    std::optional<uid_t> maker(const std::string& name);
    // What the driver holds for a process in all (NVML); what its ledger does not explain is booked as untracked.
    // `seen` is what view() said before the driver was asked: if it changed meanwhile, the difference would be wrong
    // by as much, so nothing is booked until the next time. Confirms it, too.
    struct Seen {
        uint64_t memory;
        uint32_t contexts;
        uint64_t moved;  // bytes of its memory that left the device or came back
    };
    struct Holding {
        pid_t pid;
        uint64_t bytes;
        std::optional<Seen> seen = {};
        // Only as a bound on what the process claims to hold where that makes others' memory leave; `bytes` is 0: the
        // driver does not know it. Never so where the driver's account cannot be seen.
        bool only_confirms = false;
    };
    // Of many processes: one decision for all.
    void set_memory_of_processes(const Uuid& uuid, const std::vector<Holding>& holdings);

    void start();
    void stop();  // clients run on unmanaged

    // For a successor, which takes over while programs run (succession.cpp). hand_over() stops the thread; start()
    // goes on, or else leave(), once the successor runs, ends this one without a word to anybody. The successor
    // inherits before its own start(), in this order, and devices and groups before: listen() then uses what was
    // inherited.
    Estate hand_over();
    void leave();
    void inherit_listener(const std::string& path, int fd);
    void inherit_ledger(const LedgerImage& image);
    void inherit_caller(const Caller& caller);
    // The one before has left: from now on members take more by the ledgers that this one inherited.
    void govern();
    // Whether what members of a daemon that was killed hold is known by now, or counts as the driver says.
    bool knows_members();
    // For one that is started after this one's death: the ledgers with members, as of now.
    std::vector<LedgerImage> members();

    // `listed`: with each client.
    ServerView view(bool listed = true);
    // The group of each process that is a client or awaited.
    std::vector<std::pair<pid_t, std::string>> groups_by_pid();
    int event_fd() const { return events_ready_.get(); }  // readable while take_events() would return something
    std::vector<Event> take_events();
    static Nanoseconds clock();  // the machine's, by which steps are recorded
    // Steps numbered `from` and later, and whose steps there are. The mutex is held for microseconds: some thousand
    // steps a call, please.
    Trace::Part trace(uint64_t from, size_t most);
    std::pair<uint64_t, bool> trace_at(
        Nanoseconds at);  // the number of the first step since; whether earlier ones are forgotten
    std::vector<Traced> traced();

  private:
    struct Listener {
        ForeignSocket socket;
        std::string path;
        std::optional<std::string> group;
    };

    // server.cpp: sockets, the thread and its timer
    void run();
    void halt();
    void accept_client(Listener& listener);
    bool identify(Client& client, const std::optional<std::string>& group);
    bool enter(std::unique_ptr<Client> client);
    void take_answers();
    void turn_away(Client& client, const std::string& why);
    void drop(Client& client, const char* why);
    void watch(int fd, uint64_t tag);
    void tick();
    void arm_timer();
    void wake();

    // succession.cpp
    std::vector<LedgerImage> ledgers();

    // absent.cpp
    std::pair<const uint32_t, Absent>& await(Absent absent);
    void inquire(uint32_t id, Absent& absent);
    void await_inquiries();
    void end_absent(uint32_t id);
    void end_absent_if(const std::function<bool(const Absent&)>& which);
    void look_at_absent(Nanoseconds now);
    void looked_at_absent(uint32_t id, const std::optional<Look>& look);
    static bool is_of(const Absent& absent, const Client& client);  // they are one process
    static bool is_replaced(const Absent& absent, uint64_t image, bool if_unknown);
    std::optional<Absent> claim(const Device& device, const Client& client);

    // lost_ledgers.cpp
    LostLedger* lost_ledger(const Device& device, const std::string& group);
    bool is_to_tell(const std::shared_ptr<Device>& device, const std::string& group, uint32_t number);
    void tells(const Device& device, const Client& client, const wire::Message& message);
    static void comes(Absent& absent, const wire::Message& attach);
    void has_come(const Device& device, const Attachment& a, const wire::Message& attach);
    void count_untracked(LostLedger& lost);
    std::optional<Slot> claim_told(const Device& device, const std::string& group, const wire::Message& attach);
    void settle_lost(Nanoseconds now);
    bool awaits_lost() const;

    // reports.cpp
    void note(const Attachment& attachment, const char* what, int64_t value);
    void note_standings(Device& device);
    static Traced traced(const Device& device, const Attachment& attachment);
    static void count(Device& device, Attachment& attachment);
    void emit(const char* kind, const Client& client, std::string text = {}, const Device* device = nullptr);
    void note_unmanaged(const Client& client, std::string group, const std::string& why);
    std::vector<Unmanaged> unmanaged() const;
    void look_at_unmanaged(Nanoseconds now);
    ServerView view_locked(bool listed);
    static GroupView view_of(const Device& device, const GroupUsage& usage, const Group* group);

    // messages.cpp
    enum class Received { kMessage, kNothing, kEnd };  // kEnd: drop the client
    Received receive(Client& client);
    void receive_from(const std::vector<uint32_t>& ids);
    Received receive_safely(Client& client);
    bool handle(Client& client, const wire::Message& message);
    bool hello(Client& client, const wire::Message& message);
    void stopped(Device& device, Attachment& attachment, const wire::Message& message, Nanoseconds now);
    void served(Device& device, Attachment& attachment, const wire::Message& message, Nanoseconds now);
    void context_changed(Device& device, Attachment& attachment, const wire::Message& message);
    static void publish_contexts(Attachment& attachment);
    bool answer(Client& client, wire::Message message, wire::Status status, const std::string& text,
                const std::vector<int>& descriptors = {});

    // server/attach.cpp
    struct Use {  // of a device, by one client
        std::shared_ptr<Device> device;
        FairPlace place;
    };
    bool attach(Client& client, const wire::Message& message);
    std::optional<Use> use_of_device(Client& client, const wire::Message& message);
    void refuse_use(Client& client, wire::Status status, const std::string& why);
    void refuse_more(Client& client, const FairLimit& limit, const char* what);
    static const std::shared_ptr<Ledger>& ledger_on(Device& device, const Group& group);
    std::optional<Slot> slot_for(const Client& client, const Device& device, const std::shared_ptr<Ledger>& ledger,
                                 const wire::Message& message, std::optional<Absent>& before);
    void take_up(Device& device, Attachment& a, const wire::Message& message, const std::optional<Absent>& before);
    void open_page(Attachment& a, Nanoseconds now) const;
    bool send_pages(Client& client, const Device& device, Attachment& a, wire::Message reply);

    // server/residency.cpp
    uint64_t host_left(const Device& device) const;
    static bool limits_residency(const Device& device);
    void read_claims(Device& device);
    static bool is_beyond_limit(const Device& device, const Attachment& attachment, uint64_t movable);
    void join_residency(Device& device, Attachment& attachment, const Group& group, const Absent* before,
                        Nanoseconds now);
    void set_resident(Device& device, const Group& group, Nanoseconds now);
    void admit(Device& device, Attachment& attachment, const wire::Message& message, Nanoseconds now);
    void make_room(Device& device, Attachment& attachment, const wire::Message& message, Nanoseconds now);
    bool withheld(Device& device, Attachment& attachment, Nanoseconds now);  // a request that must wait
    void settle_residency(Device& device, Nanoseconds now);
    void check_claims(Device& device, std::vector<Attachment*> theirs, const std::vector<Absent*>& left_behind,
                      uint64_t bytes, Nanoseconds now, std::vector<Residency::Report>& found);
    static void book(Device& device, Attachment& attachment, const Holding& holding);
    static OnDevice on_device(const Device& device, const Attachment& attachment);
    static OnDevice believed(OnDevice has, const Unconfirmed& unconfirmed);
    static std::unordered_map<ClientId, ResidencyUsage> residencies(const Device& device, Nanoseconds now);

    // grants.cpp
    void apply(Device& device, Nanoseconds now);  // after any event of its arbiter's
    bool carry_out(Device& device, Nanoseconds now);
    void grant(Attachment& attachment, const Action& action);
    void read_progress(Device& device, Attachment& attachment);
    void read_progress(Device& device);  // of all who hold the token

    // server/agreement.cpp
    void agree(Nanoseconds now);
    static void agree_with_newcomer(Attachment& attachment, const Group& group);

    // groups.cpp
    const std::shared_ptr<Device>& device_for(const Uuid& uuid, int index);
    void forget_unused_devices();
    void forget_if_unused(const std::string& name);
    void forget_group(const std::string& name);
    static bool may_join(const Group& group, const Client& client);
    static bool may_have_all(const Group& group, const Client& client);
    bool has_too_many_groups(uid_t user) const;
    void expel(const Group& group, Nanoseconds now);
    static std::shared_ptr<Ledger> new_ledger(const Group& group);
    static void tell_context_size(Device& device, const Attachment& a);  // its group
    static void validate(const GroupSettings& settings);
    static GroupSpec spec_on(const Device& device, const Group& group);

    GroupId group_on(Device& device, Group& group, Nanoseconds now);

    // What an epoll entry stands for: kind in the high half, index or id in the low.
    enum Tag : uint64_t {
        kTimer = 1ull << 32,
        kWake = 2ull << 32,
        kListener = 3ull << 32,
        kSocket = 4ull << 32,
        kProcess = 5ull << 32,
        kAbsent = 6ull << 32,
        kUnmanaged = 7ull << 32  // of inquiries alone
    };

    const ServerOptions options_;
    FairLimit connections_, uses_, named_devices_;
    YieldingMutex mutex_;
    std::thread thread_;
    std::atomic<bool> stopping_{false};
    Descriptor epoll_, timer_, wake_, events_ready_, spare_;
    Inquiries inquiries_;
    std::vector<std::unique_ptr<Listener>> listeners_;
    std::map<std::string, Group> groups_;
    Accounts accounts_;
    std::vector<std::shared_ptr<Device>> devices_;
    std::map<uint32_t, std::unique_ptr<Client>> clients_;
    UnmanagedList unmanaged_;
    Nanoseconds look_at_unmanaged_ = 0;
    std::set<pid_t> unmanaged_looked_at_;  // asked about, and nothing has come of that yet
    std::vector<Event> events_;
    std::unordered_map<std::string, size_t> events_of_;  // of each user
    Trace trace_;
    arbiter::Gangs gangs_;
    uint32_t next_client_ = 1;
    ClientId next_attachment_ = 1;
    Nanoseconds agree_at_ = 0;  // at the earliest, and only if there was a message since, or somebody listens
    bool listened_ = false;
    uint64_t host_memory_;
    uint64_t begun_ = 0;  // when it began to serve, in ticks since boot as of Look
    uint64_t denied_ = 0;
    std::map<std::string, ForeignSocket> sockets_before_;  // by path: those of the daemon before, until listen()
    std::map<uint32_t, Absent> absent_;
    uint32_t next_absent_ = 1;
    Nanoseconds look_at_ = 0;  // at them
    std::vector<LostLedger> lost_;
    Nanoseconds next_round_ = 0;
    int rounds_ = 0;        // so far, in each of which it has served
    bool follows_ = false;  // it has the ledgers of the daemon before
};

}  // namespace gemlet::server
