// Chunks against a driver that fails at every position, pieces against a model, the gate under threads.
// Exits 1 with the first thing that is wrong.
#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "swap_chunk.h"
#include "swap_gate.h"
#include "swap_pieces.h"

using namespace gemlet::hook;

namespace gemlet::hook {
void swap_await_open(SwapGate& gate) {
    gate.wait_for_change(1'000'000);
}
}  // namespace gemlet::hook

// Physical memory as numbers: what was written to a handle is there until it is released.
class FakeDriver : public ChunkDriver {
  public:
    int fails_at = -1, calls = 0;
    std::map<CUmemGenericAllocationHandle, int> content;
    CUmemGenericAllocationHandle mapped = 0;
    bool allowed = false;

    CUresult create(uint64_t, CUmemGenericAllocationHandle& handle) override {
        if (fails()) return CUDA_ERROR_OUT_OF_MEMORY;
        handle = ++next_;
        content[handle] = -1;
        return CUDA_SUCCESS;
    }
    CUresult map(CUdeviceptr, uint64_t, CUmemGenericAllocationHandle handle) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        CHECK(!mapped && content.contains(handle));
        mapped = handle;
        return CUDA_SUCCESS;
    }
    CUresult allow(CUdeviceptr, uint64_t) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        CHECK(mapped && !allowed);
        allowed = true;
        return CUDA_SUCCESS;
    }
    CUresult unmap(CUdeviceptr, uint64_t) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        CHECK(mapped);
        mapped = 0;
        allowed = false;
        return CUDA_SUCCESS;
    }
    CUresult release(CUmemGenericAllocationHandle handle) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        CHECK(mapped != handle && content.erase(handle) == 1);
        return CUDA_SUCCESS;
    }
    int& here() {
        CHECK(mapped && allowed);
        return content.at(mapped);
    }

  private:
    bool fails() { return calls++ == fails_at; }
    CUmemGenericAllocationHandle next_ = 0;
};

// A chunk's life, with each step done again until the driver agrees, and a copy that may fail too.
static int live(int fails_at) {
    FakeDriver driver;
    driver.fails_at = fails_at;
    Chunk chunk;
    chunk.bytes = 64;
    int host = -2;
    const auto again = [](auto&& step) {
        for (int i = 0; step() != CUDA_SUCCESS; ++i) CHECK(i < 3);
    };
    const auto copy_fails = [&] { return driver.calls++ == driver.fails_at; };
    again([&] { return chunk.prepare(driver); });
    CHECK(chunk.resident() && !chunk.needs_copy_in());
    for (int value = 0; value < 5; ++value) {
        chunk.opened();
        driver.here() = value;
        CHECK(chunk.needs_copy_out() && !chunk.may_vacate() && chunk.eviction_class() == 2);
        while (!chunk.may_vacate()) {
            if (copy_fails()) continue;
            host = driver.here();
            chunk.copied();
        }
        CHECK(chunk.eviction_class() == 1 && chunk.resident());
        again([&] { return chunk.vacate(driver); });
        CHECK(!chunk.resident() && !chunk.on_device() && driver.content.empty() && chunk.needs_copy_in());
        again([&] { return chunk.prepare(driver); });
        CHECK(!chunk.resident());
        if (value == 2) {  // it has to go again before it is filled: the host's copy still counts
            CHECK(chunk.may_vacate());
            again([&] { return chunk.vacate(driver); });
            again([&] { return chunk.prepare(driver); });
        }
        while (chunk.needs_copy_in()) {
            if (copy_fails()) continue;
            driver.here() = host;
            chunk.arrived();
        }
        CHECK(chunk.resident() && driver.here() == value);
        if (value == 3) {  // clean: nothing ran since it came
            CHECK(!chunk.needs_copy_out());
            again([&] { return chunk.vacate(driver); });
            again([&] { return chunk.prepare(driver); });
            driver.here() = host;
            chunk.arrived();
        }
    }
    chunk.discard();
    CHECK(chunk.may_vacate() && chunk.eviction_class() == 0);
    again([&] { return chunk.vacate(driver); });
    CHECK(driver.content.empty());
    return driver.calls;
}

static void pieces_do_not_overlap() {
    std::mt19937_64 random(3);
    constexpr uint64_t total = 1 << 20, within = 1 << 16;
    Pieces pieces(total);
    std::map<uint64_t, uint64_t> taken;
    for (int i = 0; i < 200'000; ++i) {
        if (random() % 2) {
            const uint64_t bytes = 512 * (1 + random() % 40);
            const auto at = pieces.take(bytes, within);
            if (!at) continue;
            CHECK(*at + bytes <= total && *at / within == (*at + bytes - 1) / within);
            auto next = taken.lower_bound(*at);
            CHECK(next == taken.end() || *at + bytes <= next->first);
            CHECK(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= *at);
            taken[*at] = bytes;
        } else if (!taken.empty()) {
            auto which = taken.lower_bound(random() % total);
            if (which == taken.end()) which = taken.begin();
            CHECK(pieces.find(which->first + which->second - 1) == std::pair(which->first, which->second));
            CHECK(pieces.give(which->first) && !pieces.give(which->first));
            taken.erase(which);
        }
    }
    for (auto& [at, bytes] : taken) CHECK(pieces.give(at));
    CHECK(pieces.empty() && pieces.take(total) == 0u);  // all holes are one again
}

// Nobody is inside while somebody moves.
static void the_gate_keeps_apart() {
    SwapGate gate(nullptr);
    std::atomic<bool> stop{false};
    std::atomic<int> inside{0}, passed{0};
    bool away = false;  // plain: a thread sanitizer sees whoever looks at it meanwhile
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            while (!stop) {
                if (!gate.enter()) {
                    swap_await_open(gate);
                    continue;
                }
                CHECK(gate.enter());  // again, also while it is being closed
                ++inside;
                CHECK(!away);
                --inside;
                gate.leave();
                gate.leave();
                ++passed;
            }
        });
    for (int i = 0; i < 300; ++i) {
        gate.close();
        CHECK(gate.await_empty(5'000'000'000));
        away = true;
        CHECK(inside == 0);
        away = false;
        gate.open();
        std::this_thread::yield();
    }
    stop = true;
    gate.open();
    for (auto& t : threads) t.join();
    CHECK(passed > 0);
}

int main() {
    const int calls = live(-1);
    for (int i = 0; i < calls; ++i) live(i);
    pieces_do_not_overlap();
    the_gate_keeps_apart();
    std::printf("positions %d\n", calls);
    return 0;
}
