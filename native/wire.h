// What the hook (in the client process) and the arbiter (in the daemon) exchange.
// This is the only header both include; tests/unit/server/wire.py mirrors it and a test compares the two.
//
// Two channels:
//   control  a SOCK_SEQPACKET Unix socket, one `Message` a packet, answers carry memory by SCM_RIGHTS
//   data     shared memory, so that neither a launch nor an allocation needs a system call
//
//   ClientPage    one per client and device, written by both sides; the daemon treats what it reads there as a claim
//   DevicePage    one per device, written by clients of the class `latency`, read by the others
//   GroupLimits   one per group and device, mapped read-only by clients (the memfd is sealed against writing)
//   GroupLedger   one per group and device, written by the members of that one group only
//   ResidencyPage one per client and device whose memory may be moved to the host (native/arbiter/residency)
//
// Times are nanoseconds of the machine's clock (machine/clock.h), sizes are bytes. Everything is fixed in size and
// host byte order: both ends are always the same machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gemlet::wire {

inline constexpr uint32_t kMagic = 0x314d4547;  // "GEM1"

// Daemon and hooks may be one version apart, with the daemon ahead: it takes over under programs that run. A daemon
// speaks to each client in the version of its hello, and a change keeps to what the version before can read: it takes
// a reserved field, where 0 means that nothing is there, or a new message or flag, which an older client is not sent.
//
//   version  differs from the one before
//   7        in GroupLimits.limited; from here on a daemon also serves the version before its own
inline constexpr uint16_t kWireVersion = 7;
inline constexpr uint16_t kWireOldest = kWireVersion - 1;  // that a daemon of this version serves
inline constexpr bool is_spoken(uint16_t version) {
    return version >= kWireOldest && version <= kWireVersion;
}

inline constexpr size_t kGroupNameBytes = 256;  // with the final NUL; Kubernetes' "namespace/pod" fits
inline constexpr size_t kTextBytes = 512;
inline constexpr uint64_t kNoLimit = UINT64_MAX;
inline constexpr uint64_t kNever = UINT64_MAX;
inline constexpr uint32_t kLedgerSlots = 1024;  // clients of one group on one device

// --- control channel ---------------------------------------------------------------------------------------------

enum class MessageType : uint16_t {
    kHello = 1,    // client: version, the group it asks to join
    kWelcome = 2,  // daemon: client id, or why not
    // client: asks to use the device with this UUID, where it has `slot` contexts and `tail_ns` bytes already, and
    // slot `client` - 1 of the ledger `epoch`
    kAttach = 3,
    kAttached = 4,  // daemon: slot and four descriptors (page, limits, ledger, device), or why not
    kRequest = 5,   // client: requests the token
    kTook = 6,      // client: took the parked token by itself (TokenState::kParked -> kRun)
    kStopped =
        7,  // client: submits no more; `tail_ns` estimates what is still in flight. kIdle: for `value` ns already
    kDrained = 8,   // client: what was in flight at kStopped was complete at `time_ns`
    kContext = 9,   // client: the number of its contexts on the device changed to `value`
    kRefused = 10,  // client: an allocation of `value` bytes was refused by the limit (for the daemon's log)
    kLeaves = 11,   // client: closes the connection, for it cannot be governed; `text` says why
    // client, if asked: `slot` of its ledger before, `epoch`, has `value` bytes; kLedgerSlots: that is all, and
    // `value` is untracked beside it
    kBefore = 12,
    kAdmit = 16,  // client: asks to have `value` bytes of movable memory in all; answered in its ResidencyPage
    kRoom = 17,   // client: has charged memory that cannot move and waits until there is room for it; answered there
    kMoved = 18,  // client: its ResidencyPage has news
};

enum class Status : uint32_t {
    kOk = 0,
    kMismatch = 1,   // the two sides speak different versions
    kDenied = 2,     // this user may not join that group
    kUnknown = 3,    // no such group or device
    kFull = 4,       // no free slot
    kMalformed = 5,  // the message makes no sense
};

enum class StopReason : uint32_t {
    kDeadline = 0,  // the quantum ended
    kIdle = 1,      // nothing in flight and nothing submitted for a while
    kRevoked = 2,   // the daemon asked
    kExit = 3,      // the last context is gone
};

struct Header {
    uint32_t magic;
    uint16_t version;
    MessageType type;
    uint32_t device;  // index the daemon gave in kAttached; 0 where none is meant
    uint32_t epoch;   // the token's epoch this speaks of; 0 where none is meant
};

// One size for every message: no length to check but one, no union to mis-read.
struct Message {
    Header header;
    Status status;
    StopReason reason;
    uint32_t client;
    uint32_t slot;
    int32_t pid;  // as the client sees itself, for messages to people; identity is SO_PEERCRED
    uint32_t flags;
    uint64_t time_ns;
    uint64_t tail_ns;
    uint64_t value;
    uint8_t uuid[16];
    char group[kGroupNameBytes];
    char text[kTextBytes];  // reason for people, or the client's command name
};

inline constexpr uint32_t kHelloCreateGroup = 1;  // flags of kHello: make the group if it does not exist
inline constexpr uint32_t kHelloStrict = 2;       // flags of kHello: it does not run ungoverned
inline constexpr uint32_t kHelloAgain = 4;        // flags of kHello: as the same program; it holds what it held
inline constexpr uint32_t kUnderMps = 1;          // flags of kAttach: its contexts will be clients of MPS
inline constexpr uint32_t kStillRequests = 1;     // flags of kStopped: a kRequest with the same message
inline constexpr uint32_t kUnused = 2;            // flags of kStopped: nothing was submitted in this turn
inline constexpr uint32_t kMovable = 1;           // flags of kAttached: one more descriptor (ResidencyPage)
inline constexpr uint32_t kTellBefore = 2;  // flags of kAttached: close the ledger before, and tell it (kBefore)
inline constexpr uint32_t kAdopt = 1;       // flags of kAdmit: it has them already, from before this daemon
inline constexpr uint32_t kWouldStay = 1;  // flags of kRoom: `value` bytes of what it may move are to stay; only asks

// --- data channel: the token ---------------------------------------------------------------------------------------

enum class TokenState : uint32_t {
    kBlocked = 0,   // must ask (kRequest) and wait on the futex
    kRun = 1,       // may submit
    kParked = 2,    // nobody else wants it: may take it (compare-exchange to kRun, then kTook) without waiting
    kRevoked = 3,   // must stop submitting and answer kStopped
    kStopping = 4,  // written by the client itself: stopped, kStopped is on its way
};

// token word = epoch << 3 | state; the daemon raises the epoch with each grant.
inline constexpr uint32_t kTokenStateBits = 3;
inline constexpr uint32_t token_word(uint32_t epoch, TokenState s) {
    return (epoch << kTokenStateBits) | static_cast<uint32_t>(s);
}
inline constexpr TokenState token_state(uint32_t word) {
    return static_cast<TokenState>(word & ((1u << kTokenStateBits) - 1));
}
inline constexpr uint32_t token_epoch(uint32_t word) {
    return word >> kTokenStateBits;
}
// A client with a thousand requests a second comes to the last one in six days. 0 means none.
inline constexpr uint32_t next_epoch(uint32_t epoch) {
    return epoch < UINT32_MAX >> kTokenStateBits ? epoch + 1 : 1;
}
static_assert(token_epoch(token_word(next_epoch(UINT32_MAX >> kTokenStateBits), TokenState::kRun)) == 1);

struct alignas(64) ClientPage {
    // First cache line: read on every launch, written a few times a second.
    std::atomic<uint32_t> token;        // futex word
    std::atomic<uint32_t> flags;        // kPageShared, kPageRaise
    std::atomic<uint64_t> deadline_ns;  // end of this quantum, kNever when nobody waits and no cap binds
    std::atomic<uint64_t> window_ns;    // bound on work in flight, as time
    std::atomic<uint64_t> lead_ns;      // hand over when no more than this is in flight
    std::atomic<uint32_t> attached;     // 1 while the daemon honours this page
    std::atomic<uint32_t> contexts;     // as many as the daemon has booked memory for; futex word
    std::atomic<uint32_t> idle_ns;      // a pause this long ends its turn ...
    std::atomic<uint32_t>
        idle_most_ns;                // ... or this long, while its pauses of more than idle_ns are short on average
    std::atomic<uint32_t> poll_ns;   // how often it looks at its queues
    std::atomic<uint32_t> agreed;    // its part of each period while the daemon is silent: see agreed_part()
    std::atomic<uint64_t> heard_ns;  // when the daemon was last there, for one that waits; 0: it does not say
    // Second cache line: written by the client.
    alignas(64) std::atomic<uint64_t> launches;  // submissions so far
    std::atomic<uint64_t> work_ns;               // completed work, as long as it would take on an idle device
    std::atomic<uint64_t> samples;               // looks at its queues while it holds the token ...
    std::atomic<uint64_t> busy_samples;          // ... that found work queued or running ...
    std::atomic<uint64_t> awaited_samples;       // ... for which a thread of the program waited
    // Bytes of its slot that stand for contexts for which the daemon has yet to account. Set before they are in the
    // slot and cleared after they left it.
    std::atomic<uint64_t> room;
    std::atomic<uint32_t> tied;  // 1: it uses memory of other processes, as the ranks of a job do
    // Written by the daemon: its turn ends after so many submissions, for its peers wait for no more; 0: for no such
    // reason.
    std::atomic<uint32_t> submissions;
    // Written by the daemon: 1: others wait for it, or will, so this one listens for the daemon while it runs, too.
    std::atomic<uint32_t> listens;
    uint32_t reserved1;
};

// A daemon that lives tells those who wait, and those beside whom they do, so ten times a second. Where one has not
// been heard for `kSilence`, it is stopped, or starved, or dead, and its clients keep to what was agreed before: each
// runs in its own part of every period of the clock, which all of them share. The first number is what nobody waits
// for longer, a period included.
inline constexpr uint64_t kHeardEvery = 100'000'000;
inline constexpr uint64_t kSilence = 400'000'000;
inline constexpr uint64_t kAgreedPeriod = 100'000'000;
inline constexpr uint32_t kAgreedParts = 1u << 15;  // a period has so many; both ends of a part fit into one word

struct AgreedPart {
    uint64_t from_ns, to_ns;  // of each kAgreedPeriod
};
inline constexpr uint32_t agreed_word(uint32_t from, uint32_t to) {
    return from << 16 | to;
}
inline constexpr AgreedPart agreed_part(uint32_t word) {
    const uint64_t from = word >> 16, to = word & 0xffff;
    if (from >= to || to > kAgreedParts) return {0, kAgreedPeriod};
    return {from * kAgreedPeriod / kAgreedParts, to * kAgreedPeriod / kAgreedParts};
}

inline constexpr uint32_t kPageShared = 1;  // others may run at the same time: a timed kernel may look too long
inline constexpr uint32_t kPageRaise =
    2;  // class latency: raise the alarm (DevicePage) when the parked token is taken

// A client of the class `latency` that takes a parked token raises `urgent` before it says so to the daemon: a
// holder sees it within a microsecond and submits nothing until the daemon's order comes, some 80 us later; else
// one more unit of its work would go ahead of the request. It is a hint: a holder that ignores it is revoked
// nevertheless.
struct alignas(64) DevicePage {
    std::atomic<uint32_t> urgent;
    uint32_t reserved[15];
};

// --- data channel: memory
// --------------------------------------------------------------------------------------------

// After a daemon was killed, until the next one knows what its members hold.
enum class LedgerState : uint32_t {
    kOpen = 0,
    kHeld = 1,       // nobody takes more by this page
    kUnsettled = 2,  // some of what counts may be of members that have ended: who finds too little waits, looks again
};

struct alignas(64) GroupLimits {         // written by the daemon, read-only for clients
    std::atomic<uint64_t> memory_limit;  // kNoLimit if there is none
    std::atomic<uint64_t> untracked;     // contexts, modules, local memory: what the driver holds beyond the ledger
    std::atomic<uint64_t> context_estimate;  // what one more context will take
    std::atomic<uint32_t> slot_count;        // slots below this index may be in use
    std::atomic<uint32_t> limited;           // 1: the group has a limit, be it of time; its members make no other one
    // When memory that members have charged, such as the room for a context, was last added to `untracked` as well:
    // it counts twice until they have taken it out of their slots. 0: the daemon does not say.
    std::atomic<uint64_t> added_ns;
    std::atomic<uint32_t> held;  // LedgerState; see GroupLedger.closed
    uint32_t reserved[5];
};

// The only truth is slots[i].used: each is written by one process (one aligned store) and cleared by the daemon when
// that process is gone, so the sum is exact after a death at any instruction. `lock` = slot + 1 of the owner keeps
// two members from passing the limit together (native/hook/submit/ledger_lock.h says how one may lose it); the daemon
// frees it when its owner dies, and `turn` likewise.
//
// Members take more only in the ledger of the daemon that governs now. That of a daemon that was killed is `closed`
// by the first member that comes to the next one, and which tells what is in it; until then the next one holds its
// own (GroupLimits.held). A daemon that takes over has the same ledger, and the one before holds its page as it
// leaves.
struct alignas(64) GroupLedger {
    std::atomic<uint32_t> lock;
    std::atomic<uint32_t> turn;    // slot + 1 of the member that makes a context of unknown size; futex word
    std::atomic<uint32_t> number;  // of this ledger; 0: an older daemon's
    std::atomic<uint32_t> closed;  // 1: nobody takes more here
    uint32_t reserved[12];
    struct Slot {
        std::atomic<uint64_t> used;  // bytes this client has reserved
    } slots[kLedgerSlots];
};

// --- data channel: memory that moves
// --------------------------------------------------------------------------------------------

// What became of a kAdmit or kRoom.
enum class Admission : uint32_t {
    kGranted = 0,
    kCapacity = 1,  // more than the device could ever give this client
    kResident = 2,  // ... than its group's resident limit
    kHost = 3,      // the host has no room for what would have to move there
};

struct alignas(64) ResidencyPage {
    // First cache line: written by the daemon.
    std::atomic<uint64_t> allowed;    // bytes of movable memory that may be on the device
    std::atomic<uint64_t> ceiling;    // no more will ever be allowed; kNoLimit if there is no limit
    std::atomic<uint32_t> order;      // raised with each change of `allowed`; futex word
    std::atomic<uint32_t> answered;   // number (`epoch`) of the last kAdmit or kRoom that was answered; futex word
    std::atomic<uint32_t> admission;  // Admission: the answer
    uint32_t reserved0;
    std::atomic<uint64_t> host;  // the most of it that may have to be on the host; 0 while everything fits
    uint32_t reserved1[6];
    // Second cache line: written by the client; for the daemon they are a claim.
    alignas(64) std::atomic<uint64_t> movable;  // bytes in the ledger that may move
    std::atomic<uint64_t> mapped;               // of these on the device
    std::atomic<uint64_t> moved_out;            // bytes copied to the host so far ...
    std::atomic<uint64_t> moved_in;             // ... and back
    std::atomic<uint32_t> seen;                 // the order it keeps to
    std::atomic<uint32_t> away;                 // 1: not all is on the device, and nothing is submitted
    std::atomic<uint64_t> dropped;              // bytes that left the device without a copy
    std::atomic<uint64_t> pinned;               // bytes of the host's memory that it keeps ready for what moves
    std::atomic<uint64_t> room;                 // of `movable`: kept for contexts until they are accounted for
};

static_assert(sizeof(Header) == 16);
static_assert(sizeof(Message) == 16 + 24 + 24 + 16 + kGroupNameBytes + kTextBytes);
static_assert(sizeof(ClientPage) == 128);
static_assert(sizeof(ResidencyPage) == 128);
static_assert(sizeof(DevicePage) == 64);
static_assert(sizeof(GroupLimits) == 64);
static_assert(sizeof(GroupLedger) == 64 + 8 * kLedgerSlots);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace gemlet::wire
