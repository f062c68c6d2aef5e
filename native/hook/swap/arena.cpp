#include "hook/swap/arena.h"

#include <sched.h>
#include <sys/mman.h>
#include <algorithm>
#include <atomic>

#include "futex.h"
#include "hook/lookup/own_calls.h"
#include "hook/lookup/own_thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; before that the driver touches what it pins, by one thread
#endif

namespace gemlet::hook {

namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr uint64_t kFewest = 1 << 30;
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

Arena::Arena(uint64_t bytes) : bytes_(bytes), pieces_(0) {
    const auto reserve = [&] {
        return mmap(nullptr, bytes_ + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    void* reserved = reserve();
    for (; reserved == MAP_FAILED && bytes_ > kFewest; reserved = reserve()) bytes_ /= 2;  // where these are limited
    if (reserved == MAP_FAILED) return;
    pieces_ = Pieces(bytes_);
    reserved_ = reserved;
    memory_ =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(reserved) + kHugePage - 1) / kHugePage * kHugePage);
}

Arena::~Arena() {
    if (reserved_) munmap(reserved_, bytes_ + kHugePage);
}

uint64_t Arena::bytes_of(uint64_t segment) const {
    return std::min(kSegment, bytes_ - segment * kSegment);
}

CUresult Arena::pin(uint64_t offset) {
    const uint64_t segment = offset / kSegment;
    if (pinned_.contains(segment)) return CUDA_SUCCESS;
    char* const begin = at(segment * kSegment);
    const uint64_t bytes = bytes_of(segment);
    if (!taken_.contains(segment)) {
        if (mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
        // Neither a child nor a core dump needs this memory; any of these calls may fail.
        for (const int advice : {MADV_HUGEPAGE, MADV_DONTFORK, MADV_DONTDUMP}) madvise(begin, bytes, advice);
        touch_all(begin, bytes);
        taken_.insert(segment);
        taken_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
    // Memory that cannot be pinned is copied through the driver's own buffers, which is slower but correct. A
    // driver that has been torn down has nothing more to copy.
    const CUresult result = own().cuMemHostRegister_v2(begin, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (result == CUDA_ERROR_DEINITIALIZED) return result;
    pinned_.insert(segment);
    return CUDA_SUCCESS;
}

bool Arena::release(uint64_t offset) {
    const uint64_t segment = offset / kSegment;
    char* const begin = at(segment * kSegment);
    const uint64_t bytes = bytes_of(segment);
    if (pinned_.contains(segment)) {
        const CUresult result = own().cuMemHostUnregister(begin);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) return false;
        pinned_.erase(segment);
    }
    // At once, so that no other memory can be placed there.
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(begin, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) return false;
    taken_.erase(segment);
    taken_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return true;
}

void Arena::context_goes(bool alive) {
    if (alive)
        for (const uint64_t segment : pinned_) own().cuMemHostUnregister(at(segment * kSegment));
    pinned_.clear();
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

std::optional<uint64_t> Arena::last_taken(uint64_t bytes) const {
    if (taken_.empty() || *taken_.rbegin() * kSegment < bytes) return std::nullopt;
    return *taken_.rbegin() * kSegment;
}

}  // namespace gemlet::hook
