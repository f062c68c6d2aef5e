// One GPU as this process uses it: its page (token), its ledger (memory) and its pacer (work in flight).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "hook/lookup/cuda_api.h"
#include "hook/submit/pacer.h"
#include "hook/submit/waits.h"
#include "wire.h"

namespace gemlet::hook {

inline constexpr int kMaxDevices = 64;

struct Device {
    Device(CUdevice ordinal, const CUuuid& uuid);

    // The daemon's page of this device; or `agreed` while the daemon is silent or was killed: the watcher grants
    // turns there, by what the daemon left (wire::agreed_part); or `unmanaged` where nothing is known of any daemon.
    // So the launch path never tests for null. Pages of past daemons stay mapped: a thread may still be waiting on
    // one. Change it with use_page() alone: streams hold copies.
    std::atomic<wire::ClientPage*> page;
    void use_page(wire::ClientPage* next) {
        page.store(next, std::memory_order_release);
        pacer.set_page(next);
    }
    bool is_daemons(const wire::ClientPage& one) const { return &one != &unmanaged && &one != &agreed; }
    wire::ClientPage unmanaged;
    wire::ClientPage agreed{};
    std::atomic<wire::ClientPage*> silent{
        nullptr};  // the daemon's page while `agreed` is in force; null: it was killed
    std::atomic<uint64_t> unmanaged_since{0};
    const CUdevice ordinal;
    const CUuuid uuid;
    std::atomic<uint32_t> wire_index{0};
    std::atomic<uint32_t> request_epoch{UINT32_MAX};    // epoch of the last kRequest: one is enough for each
    std::mutex telling;                                 // of a stop
    std::atomic<uint32_t> stop_told{0};                 // epoch of the last kStopped
    std::atomic<uint32_t> stop_reason{0};               // wire::StopReason of the stop under way
    std::atomic<uint64_t> paused_ns{0};                 // ... and, if it is idle, how long it has been so
    std::atomic<uint64_t> launches_before{UINT64_MAX};  // ... this turn
    std::atomic<uint32_t> begun{0};                     // epoch of the last turn that a waiting thread went on in
    std::atomic<uint32_t> waiting{0};                   // threads that wait for the token now
    std::atomic<uint32_t> awaiting_memory{0};           // ... and for memory that is away
    std::atomic<uint64_t> wanted_at{0};  // when the first of them came since the last turn ended; 0: none
    // Null without a daemon; pages of past daemons stay mapped. `raise` is the same page for one of the class
    // `latency`, which alone may write it, else null.
    std::atomic<const wire::DevicePage*> shared{nullptr};
    std::atomic<wire::DevicePage*> raise{nullptr};
    std::atomic<uint32_t> urgent_seen{0};
    std::atomic<uint64_t> urgent_from{0};  // ns: what is raised before is not heeded, for there was a false alarm

    // Ledger. `mutex` orders this process's threads and re-attachment; the lock in the ledger orders processes. Both
    // stay when the daemon goes: its memory outlives it, and what it said last holds until another one says more.
    std::mutex ledger_mutex;
    wire::GroupLedger* ledger = nullptr;
    const wire::GroupLimits* limits = nullptr;
    uint32_t slot = 0;
    uint64_t used = 0;       // bytes reserved by this process
    uint64_t published = 0;  // ... as it last wrote into its slot
    // Part of `used`: kept for contexts that are being made, and for those that the daemon has not accounted for.
    uint64_t room_making = 0;
    std::atomic<uint64_t> room_made{0};
    std::atomic<int> contexts{0};

    Waits waits;
    Pacer pacer;
    std::atomic<bool> watched{false};
    std::atomic<bool> watched_meanwhile{false};  // by a thread that waits
    std::atomic<uint64_t> looked_at{0};  // when the watcher last made sure of the connection, or that there is none

    // In force, in this process alone, while no daemon has governed the device and the group's limits are known all
    // the same.
    wire::GroupLimits known_limits{};
    wire::GroupLedger known_ledger{};
};

// This process uses memory of other processes, as the ranks of a job do.
inline std::atomic<uint32_t> tied{0};

// Null if there is no such device (or before the driver is up). Never fails otherwise; attaches on first use.
Device* device_for(CUdevice ordinal);
// The same, but null if nothing called device_for() so far: attaches nothing.
Device* device_in_use(CUdevice ordinal);

// --- the daemon. Nothing here throws, prints on a healthy path, or ends the process.

// Connects on the first call (from cuInit), again after fork or when the daemon came back. Cheap when connected.
void client_start();

// The connection is lost: the daemon went away, or the program closed what it does not know. Joins again if that is
// possible at once. Harmless if nothing is lost.
void lost();
// The daemon has been silent for too long: from now on the device's time is as it was agreed. False if it has spoken.
bool keep_to_agreement(Device& device);
// It has spoken again.
void return_to_daemon(Device& device);

// Joins again and attaches every device in use. False while there is no daemon.
bool reconnect();
// The same in a thread of its own, if none does that now: a daemon that hangs lets those who join wait for its
// answer. False: one does.
bool reconnect_beside();
// The same at once where a daemon listens, waiting for it if it does not answer: once, for as long as it does not.
enum class Successor : uint8_t {
    kNone,       // none listens
    kJoined,     // one governs the device
    kTurnsAway,  // one has answered that it does not
    kSilent      // one listens, and does not answer
};
Successor join_successor(const Device& device);

// Tells the daemon, which then accounts for what the driver really took for them.
void context_count_changed(CUdevice device, int contexts);

}  // namespace gemlet::hook
