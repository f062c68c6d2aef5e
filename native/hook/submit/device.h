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

    // Points at `unmanaged` whenever no daemon governs this device, so the launch path never tests for null. Pages of
    // past daemons stay mapped: a thread may still be waiting on one.
    // Change it with use_page() alone: streams hold copies.
    std::atomic<wire::ClientPage*> page;
    void use_page(wire::ClientPage* next) {
        page.store(next, std::memory_order_release);
        pacer.set_page(next);
    }
    wire::ClientPage unmanaged;
    const CUdevice ordinal;
    const CUuuid uuid;
    std::atomic<uint32_t> wire_index{0};
    std::atomic<uint32_t> want_epoch{UINT32_MAX};  // epoch of the last kWant: one is enough for each
    std::atomic<uint32_t> stop_told{0};            // epoch of the last kStopped
    std::atomic<uint32_t> stop_reason{0};          // wire::StopReason of the stop under way
    std::atomic<uint32_t> waiting{0};              // threads that wait for the token now
    std::atomic<uint32_t> awaiting_memory{0};      // ... and for memory that is away
    std::atomic<uint64_t> wanted_at{0};            // when the first of them came since the last turn ended; 0: none
    // Null without a daemon; pages of past daemons stay mapped. `raise` is the same page for one of the class
    // `latency`, which alone may write it, else null.
    std::atomic<const wire::DevicePage*> shared{nullptr};
    std::atomic<wire::DevicePage*> raise{nullptr};
    std::atomic<uint32_t> urgent_seen{0};
    std::atomic<uint64_t> urgent_from{0};  // ns: what is raised before is not heeded, for there was a false alarm

    // Ledger. `mutex` orders this process's threads and re-attachment; the lock in the ledger orders processes.
    std::mutex ledger_mutex;
    wire::GroupLedger* ledger = nullptr;
    const wire::GroupLimits* limits = nullptr;
    uint32_t slot = 0;
    uint64_t used = 0;  // bytes reserved by this process
    int contexts = 0;

    Waits waits;
    Pacer pacer;
    std::atomic<bool> watched{false};
};

// Null if there is no such device (or before the driver is up). Never fails otherwise; attaches on first use.
Device* device_for(CUdevice ordinal);
// The same, but null if nothing called device_for() so far: attaches nothing.
Device* device_in_use(CUdevice ordinal);

}  // namespace gemlet::hook
