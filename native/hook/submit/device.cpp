#include "hook/submit/device.h"

#include <pthread.h>
#include <sys/mman.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "futex.h"
#include "hook/link/clock.h"
#include "hook/link/connection.h"
#include "hook/link/say.h"
#include "hook/link/version.h"
#include "hook/lookup/driver_end.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/own_thread.h"
#include "hook/submit/governance.h"
#include "hook/submit/ledger_lock.h"
#include "hook/submit/streams.h"
#include "hook/submit/swap_events.h"
#include "hook/submit/token.h"

namespace gemlet::hook {

using wire::TokenState;

namespace {

std::array<std::atomic<Device*>, kMaxDevices> devices;

// Guards making devices, (re)connecting and losing the connection. Re-made in a forked child, where a thread that no
// longer exists may have held it.
std::mutex state_mutex;
std::atomic<bool> started{false};
std::atomic<bool> joining{false};  // a thread of reconnect_beside() is at work
bool loss_unsaid = false;          // the daemon is gone, and may have a successor: with `state_mutex`

bool managed() {
    return destination().socket[0] != 0;
}

// `page` is the daemon's, or was the last one's.
void use_agreement(Device& device, const wire::ClientPage& page) {
    constexpr auto relaxed = std::memory_order_relaxed;
    wire::ClientPage& agreed = device.agreed;
    const uint32_t epoch = wire::token_epoch(agreed.token.load(relaxed));
    agreed.token.store(wire::token_word(wire::next_epoch(epoch), TokenState::kBlocked), relaxed);
    agreed.agreed.store(page.agreed.load(relaxed), relaxed);
    agreed.window_ns.store(page.window_ns.load(relaxed), relaxed);
    agreed.heard_ns.store(page.heard_ns.load(relaxed), relaxed);
    agreed.deadline_ns.store(wire::kNever, relaxed);
    device.use_page(&agreed);
}

// A daemon that ended by itself said so in the page: its clients are free. One that was killed has not.
bool was_killed(const wire::ClientPage& page) {
    return page.attached.load() != 0 && page.heard_ns.load() != 0;
}

void set_unmanaged(Device& device) {
    wire::ClientPage* page = device.page.load();
    if (page == &device.agreed) page = device.silent.exchange(nullptr);
    if (!page || page == &device.unmanaged) return;  // so it is already
    std::lock_guard lock(device.ledger_mutex);
    device.shared = nullptr;
    device.raise = nullptr;
    device.unmanaged_since = now_ns();
    if (was_killed(*page) && !destination().strict)
        use_agreement(device, *page);
    else
        device.use_page(&device.unmanaged);
    swap_lost(device);
}

void unmanage(Device& device) {
    wire::ClientPage* page = device.page.load();
    set_unmanaged(device);
    futex_wake_all(page->token);
}

Held held_by(Device& device, uint32_t contexts) {
    std::lock_guard lock(device.ledger_mutex);
    Held held{contexts, device.used, 0, 0};
    if (device.ledger) {
        held.ledger = device.ledger->number.load();
        held.slot = device.slot;
    }
    return held;
}

// What is in a ledger that is closed: slots and bytes, and what is untracked beside them.
struct Left {
    uint32_t number;
    std::vector<std::pair<uint32_t, uint64_t>> slots;
    uint64_t untracked;
};

// For that of another daemon. Members that have not noticed take no more there from now on.
std::optional<Left> leave_ledger(const Device& device, const Attachment& next) {
    if (!device.ledger) return std::nullopt;
    const uint32_t number = device.ledger->number.load();
    if (number == 0 || next.ledger->number.load() == number || next.ledger->number.load() == 0) return std::nullopt;
    auto slots = close_ledger(*device.ledger, device.slot);
    return Left{number, std::move(slots), device.limits->untracked.load()};
}

void tell(const Left& left, const Attachment& next) {
    wire::Message m{};
    m.header = header(wire::MessageType::kBefore, next.wire_index);
    m.header.epoch = left.number;
    for (const auto& [slot, bytes] : left.slots) {
        m.slot = slot;
        m.value = bytes;
        if (!send(m)) return;
    }
    m.slot = wire::kLedgerSlots;
    m.value = left.untracked;
    send(m);
}

bool attach_device(Device& device) {
    const auto contexts = uint32_t(std::max(device.contexts.load(), 0));
    auto attachment = attach(reinterpret_cast<const unsigned char (&)[16]>(device.uuid.bytes),
                             uint32_t(device.ordinal), held_by(device, contexts));
    if (!attachment) return false;
    wire::ClientPage* before = device.page.load();
    const std::optional<Left> left = leave_ledger(device, *attachment);
    {
        std::lock_guard lock(device.ledger_mutex);
        device.ledger = attachment->ledger;
        device.limits = attachment->limits;
        device.slot = attachment->slot;
        attachment->page->room.store(device.room_making + device.room_made.load(), std::memory_order_release);
        // A new daemon's limits do not take away memory that this process already holds.
        device.ledger->slots[device.slot].used.store(device.used, std::memory_order_release);
        device.published = device.used;
    }
    // Not before its own slot has all: with the last word the others may take what is free.
    if (left && attachment->tell_before) tell(*left, *attachment);
    device.wire_index = attachment->wire_index;
    device.request_epoch = UINT32_MAX;
    device.stop_told = 0;
    device.raise = attachment->latency ? attachment->device : nullptr;
    device.urgent_seen = attachment->device->urgent.load();
    device.shared = attachment->device;
    device.silent = nullptr;
    device.use_page(attachment->page);
    swap_attached(device, *attachment);
    futex_wake_all(before->token);
    if (contexts > 0) context_count_changed(device.ordinal, device.contexts);  // a daemon of before did not read that
    start_watcher(device);
    return true;
}

// Whether its group had a limit when a daemon last governed it, or when it was started.
bool had_limits() {
    return has_limits(destination()) || std::any_of(devices.begin(), devices.end(), [](auto& slot) {
               const Device* device = slot.load();
               const wire::GroupLimits* limits = device ? device->limits : nullptr;
               return limits && (limits->limited.load() != 0 || limits->memory_limit.load() != wire::kNoLimit);
           });
}

// A device whose ledger no daemon gives keeps to what the group has elsewhere, or else to what the launcher was
// granted. Strict programs use no such device.
void use_known_limits(Device& device) {
    if (destination().strict) return;
    constexpr uint64_t kShort = 10'000'000;
    constexpr auto relaxed = std::memory_order_relaxed;
    uint64_t memory = destination().memory_limit, context = 0;
    uint32_t agreed = destination().agreed;
    for (auto& slot : devices) {
        const Device* other = slot.load();
        if (!other || !other->limits) continue;
        memory = other->limits->memory_limit.load(relaxed);
        context = other->limits->context_estimate.load(relaxed);
        const wire::ClientPage& page = *other->page.load();
        if (&page != &other->unmanaged && other->limits->limited.load(relaxed)) agreed = page.agreed.load(relaxed);
        break;
    }
    if (memory != wire::kNoLimit) {
        device.known_limits.memory_limit = memory;
        device.known_limits.context_estimate = context;
        device.known_limits.slot_count = 1;
        device.known_limits.limited = 1;
        device.limits = &device.known_limits;
        device.ledger = &device.known_ledger;
    }
    if (agreed != 0) {
        device.agreed.token = wire::token_word(0, TokenState::kBlocked);
        device.agreed.agreed = agreed;
        device.agreed.window_ns = kShort;
        device.agreed.deadline_ns = wire::kNever;
        device.use_page(&device.agreed);
    }
}

constexpr int kTries = 8;  // a program that closes all its files does so once or twice

// The program has closed our socket: everything is attached anew, at once, so that no turn is free meanwhile. The
// slots in the ledgers stay its own.
bool rejoin() {
    for (int tries = 0; tries < kTries; ++tries) {
        disconnect();
        if (!connect_daemon(false, had_limits())) return false;
        bool all = true;
        for (auto& slot : devices)
            if (Device* device = slot.load()) all = attach_device(*device) && all;
        if (all) return true;
        if (!closed_by_program()) break;
    }
    return false;
}

void say_lost() {
    const bool agreed = std::any_of(devices.begin(), devices.end(), [](auto& slot) {
        const Device* device = slot.load();
        return device && device->page.load() == &device->agreed;
    });
    say_once(Topic::kDaemon, "the daemon is gone: %s; limits of memory stay",
             destination().strict ? "work waits for it to come back, and fails after 10 s (--strict)"
             : agreed             ? "running on by the last shares until it is back"
                                  : "running without limits of time until it is back");
}

// Children that were forked past libc (by a raw fork or clone, or _Fork) do not run its handlers, and each would
// count in its parent's slot: a program may have asked NVML, and start CUDA in its children alone. The kernel wipes
// this word in them; null where it cannot (before Linux 4.14).
std::atomic<std::atomic<uint32_t>*> wiped_by_fork{nullptr};

void mark_process() {
    constexpr int kWipeOnFork = 18;  // MADV_WIPEONFORK
    constexpr size_t kPage = 4096;
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    auto* word = new (page) std::atomic<uint32_t>{1};
    if (madvise(page, kPage, kWipeOnFork) == 0)
        wiped_by_fork = word;
    else
        munmap(page, kPage);
}

// In a forked child nothing of the parent's CUDA state works; a child that starts its own joins anew in cuInit.
void in_child() {
    driver_ends_in_child();
    forget_connection();
    forget_streams();
    swap_in_child();
    started = false;
    loss_unsaid = false;
    joining = false;
    new (&state_mutex) std::mutex;
    for (auto& slot : devices) slot.store(nullptr);  // leaked with their locks, which may be held by nobody
}

void notice_fork() {
    std::atomic<uint32_t>* word = wiped_by_fork.load(std::memory_order_acquire);
    uint32_t wiped = 0;
    if (word && word->load(std::memory_order_relaxed) == 0 && word->compare_exchange_strong(wiped, 1)) [[unlikely]]
        in_child();
}

}  // namespace

Device::Device(CUdevice o, const CUuuid& u)
    : page(&unmanaged), unmanaged{}, unmanaged_since(now_ns()), ordinal(o), uuid(u) {
    unmanaged.token = wire::token_word(0, work_passes_unmanaged() ? TokenState::kRun : TokenState::kBlocked);
    unmanaged.deadline_ns = wire::kNever;
    unmanaged.window_ns = wire::kNever;
}

void client_start() {
    notice_fork();
    if (started.load(std::memory_order_acquire) || !managed()) return;
    std::lock_guard lock(state_mutex);
    if (started.load()) return;
    static std::once_flag once;
    std::call_once(once, [] {
        mark_process();
        pthread_atfork(nullptr, nullptr, [] {
            if (std::atomic<uint32_t>* word = wiped_by_fork.load()) *word = 1;
            in_child();
        });
    });
    connect_daemon(false, had_limits());
    started.store(true, std::memory_order_release);
}

Device* device_in_use(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= kMaxDevices) return nullptr;
    return devices[size_t(ordinal)].load(std::memory_order_acquire);
}

Device* device_for(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= kMaxDevices) return nullptr;
    if (Device* device = device_in_use(ordinal)) return device;
    if (!own().complete) return nullptr;
    client_start();
    std::lock_guard lock(state_mutex);
    auto& slot = devices[size_t(ordinal)];
    if (Device* device = slot.load()) return device;
    CUuuid uuid{};
    auto get_uuid = own().cuDeviceGetUuid_v2 ? own().cuDeviceGetUuid_v2 : own().cuDeviceGetUuid;
    if (get_uuid(&uuid, ordinal) != CUDA_SUCCESS) return nullptr;
    auto* device = new Device(ordinal, uuid);
    if (managed()) {
        // Again if the program closes what it does not know just now.
        for (int tries = 0; tries < kTries; ++tries) {
            if (closed_by_program()) rejoin();
            if (attach_device(*device) || !closed_by_program()) break;
        }
        if (!device->ledger) use_known_limits(*device);
        start_watcher(*device);  // also without a daemon: it is the watcher that notices one has come
    }
    swap_device_made(*device);
    slot.store(device, std::memory_order_release);
    return device;
}

void lost() {
    std::lock_guard lock(state_mutex);
    if (connected()) return;
    if (closed_by_program() && rejoin()) return;
    disconnect();
    for (auto& slot : devices)
        if (Device* device = slot.load()) unmanage(*device);
    loss_unsaid = true;
}

bool reconnect() {
    std::lock_guard lock(state_mutex);
    if (!connected()) {
        disconnect();
        const bool was_there = std::exchange(loss_unsaid, false);
        if (!connect_daemon(was_there, had_limits())) {
            if (was_there) say_lost();
            for (auto& slot : devices)
                if (Device* device = slot.load()) swap_alone(*device);
            return false;
        }
        may_say_again(Topic::kDaemon);
    }
    bool any = false;
    for (auto& slot : devices)
        if (Device* device = slot.load();
            device && !device->is_daemons(*device->page.load()) && !device->silent.load()) {
            if (attach_device(*device))
                any = true;
            else
                swap_alone(*device);
        }
    return any;
}

bool reconnect_beside() {
    if (joining.exchange(true)) return false;
    void* (*const join)(void*) = [](void*) -> void* {
        reconnect();
        const uint64_t now = now_ns();
        for (auto& slot : devices)
            if (Device* device = slot.load()) device->looked_at.store(now);
        joining = false;
        return nullptr;
    };
    if (!start_own_thread(join, nullptr)) join(nullptr);  // the system allows no more threads
    return true;
}

Successor join_successor(const Device& device) {
    constexpr uint64_t kPatience = 10'000'000'000, kStep = 1'000'000;
    static std::atomic<bool> unanswered{false};  // it was waited for, and watchers go on asking
    const auto is_governed = [&] { return device.is_daemons(*device.page.load()); };
    if (!daemon_listens()) {
        unanswered = false;
        return is_governed() ? Successor::kJoined : Successor::kNone;
    }
    const uint64_t begin = now_ns();
    // A thread that joins already may have begun before that daemon listened.
    bool tried = reconnect_beside();
    for (;; sleep_ns(kStep)) {
        if (is_governed()) {
            unanswered = false;
            return Successor::kJoined;
        }
        const bool answered = !joining && tried;
        if (answered && turned_away()) {
            unanswered = false;
            return Successor::kTurnsAway;
        }
        if (unanswered) return Successor::kSilent;
        if (answered && !daemon_listens()) return Successor::kNone;
        if (now_ns() - begin > kPatience) {
            unanswered = true;
            return Successor::kSilent;
        }
        if (!joining) tried = reconnect_beside();
    }
}

bool keep_to_agreement(Device& device) {
    std::lock_guard lock(state_mutex);
    wire::ClientPage* page = device.page.load();
    if (!device.is_daemons(*page)) return false;
    device.silent.store(page);
    use_agreement(device, *page);
    futex_wake_all(page->token);
    return true;
}

void return_to_daemon(Device& device) {
    std::lock_guard lock(state_mutex);
    wire::ClientPage* page = device.silent.exchange(nullptr);
    if (!page || device.page.load() != &device.agreed) return;
    device.request_epoch = UINT32_MAX;  // what was asked for before may have been answered and lost
    device.use_page(page);
    device.agreed.token.store(wire::token_word(0, TokenState::kBlocked));
    futex_wake_all(device.agreed.token);
    may_say_again(Topic::kSilent);
}

void context_count_changed(CUdevice ordinal, int contexts) {
    Device* device = device_for(ordinal);
    if (!device) return;
    device->contexts = contexts;
    wire::Message m{};
    m.header = header(wire::MessageType::kContext, device->wire_index.load());
    m.value = uint64_t(contexts);
    send(m);
}

}  // namespace gemlet::hook
