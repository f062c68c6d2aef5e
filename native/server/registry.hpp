// The server's records: devices, groups, clients and their attachments. Plain data, guarded by Server's mutex.
#pragma once

#include <sys/types.h>
#include <unistd.h>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arbiter/arbiter.hpp"
#include "arbiter/residency/residency.hpp"
#include "futex.h"
#include "group_fields.h"
#include "server/context_sizes.hpp"
#include "server/descriptor.hpp"
#include "server/fair_limit.hpp"
#include "server/foreign_files.hpp"
#include "server/latencies.hpp"
#include "server/ledger.hpp"
#include "server/shared_memory.hpp"
#include "server/trace.hpp"
#include "server/unconfirmed.hpp"
#include "wire.h"

namespace gemlet::server {

// Not in the arbiter's namespace: its Client and Group are other things, and one definition must not pass for
// another.
using arbiter::Action;
using arbiter::Arbiter;
using arbiter::ClientId;
using arbiter::GroupId;
using arbiter::GroupSpec;
using arbiter::GroupUsage;
using arbiter::kNever;
using arbiter::Nanoseconds;
using arbiter::Parameters;
using arbiter::Refusal;
using arbiter::Residency;
using arbiter::ResidencyUsage;
using arbiter::StopReason;
using arbiter::Why;

// The arbiter knows nothing of the wire; what crosses it has the same values on both sides.
template <typename Wire, typename Arbiter>
constexpr bool same(Wire wire, Arbiter arbiter) {
    return static_cast<uint32_t>(wire) == static_cast<uint32_t>(arbiter);
}
static_assert(same(wire::StopReason::kDeadline, StopReason::kDeadline));
static_assert(same(wire::StopReason::kIdle, StopReason::kIdle));
static_assert(same(wire::StopReason::kRevoked, StopReason::kRevoked));
static_assert(same(wire::StopReason::kExit, StopReason::kExit));
static_assert(same(wire::Admission::kGranted, arbiter::Refusal::kNone));
static_assert(same(wire::Admission::kCapacity, arbiter::Refusal::kCapacity));
static_assert(same(wire::Admission::kResident, arbiter::Refusal::kResident));
static_assert(same(wire::Admission::kHost, arbiter::Refusal::kHost));

using Uuid = std::array<uint8_t, 16>;

// What a group is worth next to others of the same device, where no policy has said it.
inline double share_of(const GroupSpec& spec) {
    return spec.min > 0 ? spec.min : 0.05 * spec.weight;
}

struct Group {
    GroupSettings settings;
    bool made_by_client = false;  // goes with its last client
    size_t clients = 0;
    std::optional<uid_t> maker = {};  // whose client made it, also once somebody has set it
    std::optional<int> device = {};   // index of the one on which it has its minimum; none: every one
    std::vector<Uuid> devices = {};   // those that its programs may use; none: every one
};

struct Client;

// The memory of one client on one device, if it can move (server/residency.cpp).
struct Movable {
    Shared<wire::ResidencyPage> page{"gemlet-residency", Access::kReadWrite};
    bool withheld = false;  // the arbiter does not get its requests: not all its memory is there
    bool wants = false;     // ... and there is one
    uint32_t room_for = 0;  // number of its kRoom that waits; 0: none
};

// What clients say that they have done, of which a group remembers the sum when they go.
struct Done {
    uint64_t launches = 0, work_ns = 0, moved = 0;
};

// What a client says that it has on the device: bytes that cannot move, and those that can.
struct Claim {
    uint64_t fixed = 0, mapped = 0;
};

// One client on one device. Owned by the device; drop() alone ends it, together with the client's Place.
struct Attachment {
    Attachment(ClientId i, Client& c) : id(i), client(&c) {}
    // The last word in its page: the daemon governs it no more.
    void let_go(wire::TokenState state) {
        page->attached = 0;
        page->deadline_ns = wire::kNever;
        epoch = wire::next_epoch(epoch);
        page->token = wire::token_word(epoch, state);
        futex_wake_some(page->token);
    }
    ClientId id;  // as the device's arbiter knows it
    Client* client;
    Slot slot;
    FairPlace use;
    Shared<wire::ClientPage> page{"gemlet-page", Access::kReadWrite};
    uint32_t epoch = 0;
    uint32_t over = 0;  // the epoch whose end was heard of
    uint32_t contexts = 0;
    uint64_t rest = 0;  // what the driver last had of it beyond its slot
    bool mps = false;
    bool holds = false;           // the token, or did when it was last heard of: its page has news
    bool drains = false;          // its turn ended with work in flight: a launch of it may yet be counted
    bool tied = false;            // it uses memory of other processes
    bool bounded = false;         // its turn has an end
    const char* state = "idle";   // for people
    Nanoseconds wanted = kNever;  // since when it has had work, from a request until it stops idle
    Why traced = Why::kShares;    // its standing, as far as it is in the trace
    std::unique_ptr<Movable> movable;
    Done counted;             // of what it says that it has done: what its group has
    bool known = false;       // there is something in `counted`: what it moved before is not news
    Claim claim;              // as it was last read
    Unconfirmed unconfirmed;  // of what it says that it holds
    Unconfirmed hidden;       // what the driver says that it holds besides
    Unconfirmed presumed;     // of what it may have that can move: Residency::only_presumed()
    uint64_t confirmed = 0;   // of what it says that it holds: what the driver had of it when it was last asked
    uint64_t beyond = 0;      // ... of the rest: what is more than its group may have
    bool may_adopt = false;   // it may have had memory that moves before it came
};

struct Device {
    Uuid uuid{};
    int index = -1;
    FairPlace named;             // if a client has named it and nobody else
    bool made_by_client = true;  // an attach named it and nobody else has: forgotten when there are too many
    std::string policy;
    ContextSizes contexts;
    bool measured = false;  // somebody calls set_memory_of_processes() for it
    bool confirms = false;  // ... and has said what a process holds
    Shared<wire::DevicePage> page{"gemlet-device", Access::kReadWrite};
    Descriptor page_to_read{reopen_read_only(page.fd())};
    std::unique_ptr<Arbiter> arbiter;
    Residency residency;
    std::optional<uint64_t> capacity;       // bytes of it that clients may use; the others' memory moves away
    std::map<std::string, GroupId> groups;  // those with clients here, now or before
    std::map<std::string, std::shared_ptr<Ledger>> ledgers;
    std::map<std::string, Latencies> latencies;  // of requests, of groups that are or were of the class latency
    std::map<std::string, Done> done;            // by groups, as of their last count()
    uint64_t traced = 0;                         // changes of standings that are in the trace
    std::unordered_map<ClientId, std::unique_ptr<Attachment>> attachments;
};

// Where a client is, by the index that its messages carry.
struct Place {
    std::shared_ptr<Device> device;
    Attachment* attachment;
};

struct Client {
    uint32_t id;
    ForeignSocket socket;
    Descriptor process;          // a pidfd, readable when it has ended
    bool refuses_files = false;  // its socket: else a message may bring some
    pid_t pid = 0;
    uid_t uid = 0;
    uid_t acts_as = 0;                 // whose what it makes and has is: nobody's, for root in a container
    uint64_t started = 0;              // ticks since boot; with `pid` it names one process for ever
    uint64_t image = 0;                // as of Look
    std::string command, group;        // group is empty until it has joined
    std::optional<std::string> fixed;  // the group of the socket it came through
    std::string who;             // among whom connections, devices and slots are shared: its user, or that group
    bool administrator = false;  // root, or the daemon's own user, unless it came through a group's socket
    FairPlace connection;
    Nanoseconds since = 0;
    std::optional<bool> strict;            // as it says in its hello
    bool limited = false;                  // likewise: it keeps to limits also where it is refused
    uint16_t version = wire::kWireOldest;  // of wire.h that it speaks: what every hook reads, until its hello
    std::string refused;                   // why it could not attach last time
    std::vector<Place> places;
};

// Bytes: what cannot move, what can, and how much of that is on the device.
struct OnDevice {
    uint64_t fixed = 0, movable = 0, mapped = 0;
};

// That the daemon before had written down the members of a ledger. Held by the ledger, and by each member for as long
// as it is awaited: that none is any more is seen without a look at all of all groups.
struct Noted {};

// A slot whose owner lives and is not connected (absent.cpp).
struct Absent {
    std::weak_ptr<Device> device;
    std::string group;
    pid_t pid;
    uid_t uid;
    uint64_t started, image;
    std::string command;
    Descriptor process;  // a pidfd, readable when it has ended; none if the kernel has no such thing
    std::string who;     // as of Client, and so is the next
    bool administrator;
    FairPlace use;  // of the daemon's descriptors; none if it comes from the daemon before
    Nanoseconds since;
    uint32_t contexts;   // that `slot` accounts for
    ClientId residency;  // as the device's residency knows it
    OnDevice has;
    Slot slot;
    uint32_t slot_before = wire::kLedgerSlots;  // in the ledger of a daemon that was killed; kLedgerSlots: not known
    uint64_t untracked_before = 0;              // as it was noted then
    std::shared_ptr<const Noted> noted = {};    // by one that was killed; its ledger's
    Unconfirmed unconfirmed = {};               // of `has.fixed`
    Unconfirmed presumed = {};                  // as Attachment::presumed
    bool is_looked_at = false;                  // it was asked about, and nothing has come of that yet
};

// The ledger of a group on a device that went with the daemon before, which was killed. Its members have it still,
// and the one that takes its place is held until one of them has closed it and told what is in it, or until all that
// are known have come or ended, or have had the time to.
struct LostLedger {
    std::weak_ptr<Device> device;
    std::string group;
    uint32_t number;
    std::set<uint32_t> known;  // slots of members that were noted, also of those that have ended
    // What members told, by ledger and slot, of members that nobody had noted. They may have another ledger than the
    // one that was noted, if two daemons were killed.
    std::map<std::pair<uint32_t, uint32_t>, Slot> others = {};
    std::set<uint32_t> asked = {}, told = {};  // ledgers
    std::shared_ptr<const Noted> noted = {};   // if one had written down who its members are
    // Untracked memory of its members: of all, as one told, and of those that have come, as they came.
    uint64_t untracked = 0, untracked_came = 0;

    bool awaits(const Absent& absent) const { return noted && absent.noted == noted; }
    bool awaits_nobody() const { return noted && noted.use_count() == 1; }
};

// What a daemon hands over to its successor, or to the one that is started after its death. Its descriptors stay its
// own.
struct HeldSlot {
    uint32_t index;
    pid_t pid;
    uid_t uid;
    uint64_t started;
    int process_fd;
    std::string who;
    bool administrator;
    uint32_t contexts;
    uint64_t used, untracked;
    OnDevice has;
    uint32_t before = wire::kLedgerSlots;  // as Absent::slot_before
};
struct LedgerImage {
    Uuid device;
    int index;
    uint64_t context_estimate;
    std::string group;
    int fd;  // negative: the memory of its members went with the daemon before
    std::vector<HeldSlot> slots;
    uint32_t number = 0;               // of the ledger, in wire::GroupLedger
    std::vector<uint32_t> ended = {};  // slots of members that have ended since
};
struct ListenerImage {
    std::string path;
    std::optional<std::string> group;
    int fd;
};
struct Caller {  // a client that uses no device yet
    int fd;
    std::optional<std::string> fixed;
    std::string group;  // empty: it has not joined
    std::optional<bool> strict;
    uint16_t version;
};
struct Estate {
    std::vector<ListenerImage> listeners;
    std::vector<LedgerImage> ledgers;
    std::vector<Caller> callers;
};

// For people's terminals: what a client says of itself must not act on them.
inline std::string printable(std::string text) {
    for (char& c : text)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return text;
}

// Among whom those share that come through a group's own socket: Client::who.
inline std::string who_of_group(const std::string& name) {
    return "group '" + printable(name) + "'";
}

// Whether it is UTF-8, as the names of groups are: others would be one and the same to people, and to Python.
inline bool is_utf8(std::string_view text) {
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};  // that needs so many bytes more than one
    for (size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i++]);
        const size_t more = lead < 0x80   ? 0
                            : lead < 0xc0 ? 4
                            : lead < 0xe0 ? 1
                            : lead < 0xf0 ? 2
                            : lead < 0xf8 ? 3
                                          : 4;
        if (more > 3 || text.size() - i < more) return false;
        uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
        for (const size_t end = i + more; i < end; ++i) {
            const auto next = static_cast<unsigned char>(text[i]);
            if ((next & 0xc0) != 0x80) return false;
            code = code << 6 | (next & 0x3f);
        }
        if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    }
    return true;
}

struct Event {
    std::string kind, group, command, device, text;
    pid_t pid = 0;
    uid_t uid = 0;
};

}  // namespace gemlet::server
