// The host's side of what moves, against a driver of which only registering is there.
// Exits 1 with the first thing that is wrong.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "check.h"
#include "hook/lookup/own_calls.h"
#include "hook/swap/arena.h"

using namespace gemlet::hook;

namespace {

std::map<void*, size_t> registered;
CUresult refusal = CUDA_SUCCESS;

CUresult register_host(void* at, size_t bytes, unsigned) {
    if (refusal != CUDA_SUCCESS) return refusal;
    return registered.emplace(at, bytes).second ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult unregister_host(void* at) {
    if (refusal != CUDA_SUCCESS) return refusal;
    return registered.erase(at) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult exchange_mode(CUstreamCaptureMode*) {
    return CUDA_SUCCESS;
}

// In /proc/self/status, in bytes.
uint64_t status(const char* name) {
    FILE* file = std::fopen("/proc/self/status", "r");
    CHECK(file);
    char line[256];
    unsigned long kib = 0;
    while (std::fgets(line, sizeof line, file))
        if (!std::strncmp(line, name, std::strlen(name))) std::sscanf(line + std::strlen(name), ": %lu", &kib);
    std::fclose(file);
    return kib * 1024;
}

}  // namespace

namespace gemlet::hook {
const OwnCalls& own() {
    static const OwnCalls calls = [] {
        OwnCalls c;
        c.cuMemHostRegister_v2 = register_host;
        c.cuMemHostUnregister = unregister_host;
        c.cuThreadExchangeStreamCaptureMode = exchange_mode;
        return c;
    }();
    return calls;
}
}  // namespace gemlet::hook

static void segments_come_and_go() {
    Arena arena(4 * kSegment + kSegment / 2);
    CHECK(arena && !arena.last_taken(0) && arena.to_pin(UINT64_MAX) == 0u);
    for (int i = 0; i < 5; ++i) {
        CHECK(arena.pin(i * kSegment + 4096) == CUDA_SUCCESS && arena.pinned(i * kSegment));
        std::memset(arena.at(i * kSegment), 1 + i, 4096);
    }
    CHECK(!arena.to_pin(UINT64_MAX) && registered.size() == 5);
    CHECK(registered.at(arena.at(4 * kSegment)) == kSegment / 2);
    CHECK(arena.taken_bytes() == 4 * kSegment + kSegment / 2 && arena.last_taken(4 * kSegment) == 4 * kSegment);
    CHECK(!arena.last_taken(4 * kSegment + 1));
    const uint64_t before = status("VmRSS");
    CHECK(arena.release(4 * kSegment) && arena.release(kSegment));
    CHECK(status("VmRSS") + kSegment < before && registered.size() == 3);
    CHECK(arena.taken_bytes() == 3 * kSegment && arena.to_pin(UINT64_MAX) == kSegment);
    CHECK(*arena.at(0) == 1 && *arena.at(3 * kSegment) == 4);
    CHECK(arena.pin(kSegment) == CUDA_SUCCESS && *arena.at(kSegment) == 0);
    // The driver keeps what it does not let go of: it may write there.
    refusal = CUDA_ERROR_UNKNOWN;
    CHECK(!arena.release(kSegment) && arena.pinned(kSegment) && arena.taken_bytes() == 4 * kSegment);
    refusal = CUDA_SUCCESS;
    // With a context goes what was pinned in it, and not what lies there.
    arena.context_goes(true);
    CHECK(registered.empty() && arena.to_pin(UINT64_MAX) == 0u && arena.taken_bytes() == 4 * kSegment);
    CHECK(arena.pin(0) == CUDA_SUCCESS && *arena.at(0) == 1 && registered.size() == 1);
    CHECK(arena.release(3 * kSegment));  // it was pinned no more
    refusal = CUDA_ERROR_DEINITIALIZED;
    CHECK(arena.pin(3 * kSegment) == CUDA_ERROR_DEINITIALIZED && !arena.pinned(3 * kSegment));
    refusal = CUDA_ERROR_OUT_OF_MEMORY;  // not pinned, and still of use
    CHECK(arena.pin(3 * kSegment) == CUDA_SUCCESS);
    refusal = CUDA_SUCCESS;
    arena.context_goes(true);
}

static void a_system_without_memory() {
    Arena arena(4 * kSegment);
    CHECK(arena.pin(0) == CUDA_SUCCESS);
    rlimit before{};
    CHECK(getrlimit(RLIMIT_DATA, &before) == 0);
    const rlimit little{status("VmData") + kSegment / 2, before.rlim_max};
    CHECK(setrlimit(RLIMIT_DATA, &little) == 0);
    CHECK(arena.pin(kSegment) == CUDA_ERROR_OUT_OF_MEMORY && !arena.pinned(kSegment));
    CHECK(arena.taken_bytes() == kSegment && arena.to_pin(UINT64_MAX) == kSegment);
    CHECK(setrlimit(RLIMIT_DATA, &before) == 0);
    CHECK(arena.pin(kSegment) == CUDA_SUCCESS);
    CHECK(arena.release(0) && arena.release(kSegment));
}

// Children made while threads touch the memory; they have none of it.
static void forks_meanwhile() {
    Arena arena(8 * kSegment);
    std::atomic<bool> stop{false};
    std::thread mover([&] {
        for (uint64_t i = 0; !stop; ++i) {
            CHECK(arena.pin(i % 8 * kSegment) == CUDA_SUCCESS);
            if (i % 3 == 0) CHECK(arena.release(i % 8 * kSegment));
        }
    });
    for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        int how = 1;
        CHECK(waitpid(child, &how, 0) == child && how == 0);
    }
    stop = true;
    mover.join();
    arena.context_goes(true);
}

int main() {
    segments_come_and_go();
    a_system_without_memory();
    forks_meanwhile();
    std::puts("ok");
    return 0;
}
