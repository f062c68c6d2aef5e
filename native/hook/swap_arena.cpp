#include "swap_arena.h"

#include <sched.h>
#include <sys/mman.h>
#include <algorithm>
#include <atomic>

#include "futex.h"
#include "own_calls.h"
#include "own_thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; before that the driver touches what it pins, by one thread
#endif

namespace gemlet::hook {

namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr size_t kMostThreads = 8;

struct Part {
    char* at;
    uint64_t bytes;
    std::atomic<uint32_t>* left;
};

void touch(const Part& part) {
    madvise(part.at, part.bytes, MADV_POPULATE_WRITE);
}

void* touch_and_tell(void* argument) {
    const Part& part = *static_cast<Part*>(argument);
    std::atomic<uint32_t>& left = *part.left;
    touch(part);
    if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(left);
    return nullptr;
}

size_t threads() {
    cpu_set_t mine;
    const int cpus = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return std::clamp<size_t>(size_t(cpus) / 2, 1, kMostThreads);
}

// Pages are zeroed when they are first touched, which one core does at a few GB/s at best.
void touch_all(char* at, uint64_t bytes) {
    const size_t count = threads();
    const uint64_t each = (bytes / count + kHugePage - 1) / kHugePage * kHugePage;
    Part parts[kMostThreads];
    std::atomic<uint32_t> left{0};
    for (size_t i = 1; i < count && i * each < bytes; ++i) {
        parts[i] = {at + i * each, std::min(each, bytes - i * each), &left};
        left.fetch_add(1, std::memory_order_relaxed);
        if (start_own_thread(touch_and_tell, &parts[i])) continue;
        left.fetch_sub(1, std::memory_order_relaxed);
        touch(parts[i]);
    }
    touch({at, std::min(each, bytes), nullptr});
    while (const uint32_t now = left.load(std::memory_order_acquire)) futex_wait(left, now, 100'000'000);
}

}  // namespace

Arena::Arena(uint64_t bytes) : bytes_(bytes), pieces_(bytes) {
    void* reserved = mmap(nullptr, bytes_ + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return;
    reserved_ = reserved;
    memory_ =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(reserved) + kHugePage - 1) / kHugePage * kHugePage);
    // A child has no use for it, nor has a core dump; any of these may fail.
    for (const int advice : {MADV_HUGEPAGE, MADV_DONTFORK, MADV_DONTDUMP}) madvise(memory_, bytes_, advice);
}

Arena::~Arena() {
    if (reserved_) munmap(reserved_, bytes_ + kHugePage);
}

bool Arena::pin(uint64_t offset) {
    const uint64_t segment = offset / kSegment;
    if (pinned_.contains(segment)) return true;
    const uint64_t begin = segment * kSegment, bytes = std::min(kSegment, bytes_ - begin);
    if (mprotect(at(begin), bytes, PROT_READ | PROT_WRITE) != 0) return false;
    touch_all(at(begin), bytes);
    // Memory that cannot be pinned is copied through the driver's own buffers: slower, and just as right.
    own().cuMemHostRegister_v2(at(begin), bytes, CU_MEMHOSTREGISTER_PORTABLE);
    pinned_.insert(segment);
    pinned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
}

void Arena::context_gone() {
    pinned_.clear();
    pinned_bytes_.store(0, std::memory_order_relaxed);
}

std::optional<uint64_t> Arena::to_pin(uint64_t bytes) const {
    uint64_t segment = 0;
    for (const uint64_t pinned : pinned_) {
        if (pinned != segment) break;
        ++segment;
    }
    const uint64_t offset = segment * kSegment;
    if (offset >= std::min(bytes, bytes_)) return std::nullopt;
    return offset;
}

}  // namespace gemlet::hook
