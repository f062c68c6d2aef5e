// device.h, connection.h and ledger.h without a daemon: GEMLET_TEST_LIMIT bytes for every device, counted in this
// process only.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "hook/link/connection.h"
#include "hook/memory/accounting.h"
#include "hook/memory/ledger.h"
#include "hook/submit/device.h"
#include "hook/submit/launch.h"
#include "wire.h"

namespace gemlet::hook {

namespace {

std::array<std::atomic<uint64_t>, kMaxDevices> used;
std::atomic<uint64_t> refusals{0};

uint64_t limit() {
    const char* text = std::getenv("GEMLET_TEST_LIMIT");
    return text ? std::strtoull(text, nullptr, 0) : wire::kNoLimit;
}

// These tests do not concern the token: no device is ever governed, so every submission passes.
std::atomic<uint64_t>& used_on(CUdevice device) {
    return used[static_cast<size_t>(device) % used.size()];
}

}  // namespace

Device::Device(CUdevice o, const CUuuid& u) : ordinal(o), uuid(u), page(&unmanaged), unmanaged{} {}
Device* device_for(CUdevice) {
    return nullptr;
}
Device* device_in_use(CUdevice) {
    return nullptr;
}

void client_start() {}
void lost() {}
bool keep_to_agreement(Device&) {
    return false;
}
void return_to_daemon(Device&) {}
bool reconnect_beside() {
    return false;
}
bool reconnect() {
    return false;
}
bool connect_daemon() {
    return false;
}
bool connected() {
    return false;
}
void disconnect() {}
bool send(const wire::Message&) {
    return false;
}
std::optional<Attachment> attach(const unsigned char (&)[16], uint32_t, const Held&) {
    return std::nullopt;
}

bool is_started_in_group() {
    return false;
}
const Destination& destination() {
    static const Destination d = [] {
        Destination made{};
        if (std::getenv("GEMLET_TEST_LIMIT")) made.socket[0] = '/';
        return made;
    }();
    return d;
}
const char* consequence() {
    return "";
}
const char* joined_group() {
    return destination().group;
}

bool memory_reserve(CUdevice device, uint64_t bytes, Wanted) {
    auto& total = used_on(device);
    uint64_t before = total.load();
    do {
        if (bytes > limit() || before > limit() - bytes) {
            ++refusals;
            return false;
        }
    } while (!total.compare_exchange_weak(before, before + bytes));
    return true;
}

// Contexts cost nothing once they are made.
void announce_room(CUdevice, uint64_t) {}
void cancel_room(CUdevice, uint64_t) {}
void keep_room(CUdevice device, uint64_t bytes, bool) {
    memory_release(device, bytes);
}
uint64_t release_room(CUdevice) {
    return 0;
}

void memory_account(CUdevice device, uint64_t bytes) {
    used_on(device) += bytes;
}

void memory_release(CUdevice device, uint64_t bytes) {
    if (used_on(device).fetch_sub(bytes) < bytes) {
        std::fprintf(stderr, "released more than was reserved\n");
        std::abort();
    }
}

MemoryView memory_view(CUdevice device) {
    return {limit(), used_on(device)};
}
MemoryView memory_view(const CUuuid&) {
    return memory_view(CUdevice{0});
}

uint64_t context_estimate(CUdevice) {
    const char* text = std::getenv("GEMLET_TEST_CONTEXT");
    return text ? std::strtoull(text, nullptr, 0) : 0;
}
std::atomic<int> contexts_told{0};
void context_count_changed(CUdevice, int contexts) {
    contexts_told = contexts;
}

}  // namespace gemlet::hook

#define TEST_API extern "C" __attribute__((visibility("default")))
TEST_API unsigned long long gemlet_test_used(int device) {
    return gemlet::hook::used_on(device);
}
TEST_API unsigned long long gemlet_test_held(int device) {
    return gemlet::hook::memory_held(device);
}
TEST_API unsigned long long gemlet_test_refusals() {
    return gemlet::hook::refusals;
}
TEST_API int gemlet_test_contexts() {
    return gemlet::hook::contexts_told;
}
TEST_API void gemlet_test_graph_memory_changed(int device) {
    gemlet::hook::graph_memory_changed(device);
}
