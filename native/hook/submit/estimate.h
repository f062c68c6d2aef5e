// How long a kernel or graph takes on the device, learned from sampled pairs of events.
//
// A direct-mapped table keyed by (function, grid): one cache line, no lock, no allocation, a few nanoseconds per
// launch. A collision merely makes two kernels share an estimate until the next sample.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace gemlet::hook {

class Estimates {
  public:
    struct Entry {
        std::atomic<uint64_t> key{0};
        std::atomic<uint32_t> nanoseconds{0};
        std::atomic<uint16_t> until_sample{0};
        std::atomic<uint16_t> interval{0};
    };

    // Before the first sample of a function: long enough that a stranger cannot flood the device unseen.
    static constexpr uint32_t kUnknown = 100'000;
    static constexpr uint16_t kMaxInterval = 1024;

    // Cheap, since every launch makes one; find() does the mixing.
    static uint64_t key(const void* function, uint64_t blocks) {
        return (reinterpret_cast<uintptr_t>(function) + blocks * 0x9e3779b97f4a7c15u) | 1;  // never 0, the empty key
    }

    Entry& find(uint64_t key) {
        key ^= key >> 29;
        key *= 0xbf58476d1ce4e5b9u;
        return entries_[key >> 40 & (kEntries - 1)];
    }

    // Counts one launch; true if this one is to be timed. Intervals double from 1 to kMaxInterval, so a kernel is
    // known after its first launch and costs two event records in a thousand launches from then on.
    static bool count(Entry& e, uint64_t key) {
        if (e.key.load(std::memory_order_relaxed) != key) {
            e.key.store(key, std::memory_order_relaxed);
            e.nanoseconds.store(kUnknown, std::memory_order_relaxed);
            e.interval.store(1, std::memory_order_relaxed);
            e.until_sample.store(1, std::memory_order_relaxed);
            return true;
        }
        uint16_t left = e.until_sample.load(std::memory_order_relaxed);
        if (left > 1) {
            e.until_sample.store(uint16_t(left - 1), std::memory_order_relaxed);
            return false;
        }
        uint16_t interval = e.interval.load(std::memory_order_relaxed);
        if (interval < kMaxInterval) interval = uint16_t(interval * 2);
        e.interval.store(interval, std::memory_order_relaxed);
        e.until_sample.store(interval, std::memory_order_relaxed);
        return true;
    }

    // What a launch of it is expected to take: one that was never timed takes what kernels of this program usually
    // do.
    uint64_t expected(const Entry& e) const {
        const uint32_t known = e.nanoseconds.load(std::memory_order_relaxed);
        return known != kUnknown ? known : usual_.load(std::memory_order_relaxed);
    }

    // This launch could not be timed, so time the next one.
    static void sample_next(Entry& e) { e.until_sample.store(1, std::memory_order_relaxed); }

    // Its only sample so far may be of a launch that loaded its module, or its last one was not believed.
    static bool doubted(const Entry& e) { return e.interval.load(std::memory_order_relaxed) <= 2; }

    // Takes up to kMemo of the launches that need no sample off the entry, for the caller to count by itself.
    static constexpr uint16_t kMemo = 64;
    static uint16_t take(Entry& e) {
        uint16_t left = e.until_sample.load(std::memory_order_relaxed);
        uint16_t taken = left > 1 ? std::min<uint16_t>(uint16_t(left - 1), kMemo) : 0;
        e.until_sample.store(uint16_t(left - taken), std::memory_order_relaxed);
        return taken;
    }

    // A sample far above the estimate may be a neighbour's time slice, or a module being loaded, in the middle of it,
    // or the kernel's arguments have changed: believed by half, and the next launch is timed again. One far below is
    // believed at once: nothing makes a kernel look shorter than it is.
    // While others run on the device (`shared`) a sample above the estimate says nothing.
    void learn(uint64_t key, uint64_t sample_ns, bool first, bool shared) {
        if (!first) usually(sample_ns);
        Entry& e = find(key);
        if (e.key.load(std::memory_order_relaxed) != key) return;  // the entry went to another kernel meanwhile
        uint64_t old = e.nanoseconds.load(std::memory_order_relaxed);
        if (shared && sample_ns > old && !(first && old == kUnknown)) return;
        // Pairs of events jitter by a few microseconds, which does not count as a surprise.
        constexpr uint64_t kJitter = 5'000;
        bool surprising = sample_ns > old + old / 2 + kJitter || sample_ns + kJitter < old / 2;
        uint64_t next = first || sample_ns < old / 2 ? sample_ns : (old + sample_ns) / 2;
        constexpr uint64_t kShortest = 500, kLongest = 4'000'000'000u;
        e.nanoseconds.store(uint32_t(std::clamp(next, kShortest, kLongest)), std::memory_order_relaxed);
        if (surprising && !first) {
            e.interval.store(1, std::memory_order_relaxed);
            e.until_sample.store(1, std::memory_order_relaxed);
        }
    }

  private:
    // The median over the kernels that are timed. A neighbour's time slice in the middle of one, a module that was
    // loaded or a wait for a peer say nothing about the others: a queue that is thought to be long is not filled.
    void usually(uint64_t sample_ns) {
        const uint32_t usual = usual_.load(std::memory_order_relaxed), step = usual / 16 + 1;
        usual_.store(std::min(sample_ns > usual ? usual + step : usual - step, kUnknown), std::memory_order_relaxed);
    }

    static constexpr uint64_t kEntries = 4096;
    std::array<Entry, kEntries> entries_;
    std::atomic<uint32_t> usual_{kUnknown};
};

}  // namespace gemlet::hook
