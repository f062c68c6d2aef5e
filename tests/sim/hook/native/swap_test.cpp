// Chunks against a driver that fails at every position and against a model of their bytes, spans and pieces against
// models, the gate under threads.
// Exits 1 with the first thing that is wrong.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "hook/swap/chunk.h"
#include "hook/submit/move_gate.h"
#include "hook/swap/pieces.h"

using namespace gemlet::hook;

namespace gemlet::hook {
void swap_await_open(MoveGate& gate) {
    gate.wait_for_change(1'000'000);
}
}  // namespace gemlet::hook

// Physical memory as numbers: what was written to a handle is there until it is released. Views are at addresses that
// are not null.
class FakeDriver : public ChunkDriver {
  public:
    int fails_at = -1, calls = 0;
    std::map<CUmemGenericAllocationHandle, int> content;
    CUmemGenericAllocationHandle mapped = 0;
    bool allowed = false;
    std::map<CUdeviceptr, CUmemGenericAllocationHandle> views;
    std::set<CUdeviceptr> seen;

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
    CUresult map_view(const ChunkView& view, CUmemGenericAllocationHandle handle) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        CHECK(content.contains(handle) && views.try_emplace(view.address, handle).second);
        return CUDA_SUCCESS;
    }
    CUresult allow_view(const ChunkView& view) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        CHECK(views.contains(view.address) && seen.insert(view.address).second);
        return CUDA_SUCCESS;
    }
    CUresult unmap(CUdeviceptr address, uint64_t) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        if (address) {
            CHECK(views.erase(address) == 1);
            seen.erase(address);
            return CUDA_SUCCESS;
        }
        CHECK(mapped);
        mapped = 0;
        allowed = false;
        return CUDA_SUCCESS;
    }
    CUresult release(CUmemGenericAllocationHandle handle) override {
        if (fails()) return CUDA_ERROR_INVALID_VALUE;
        for (const auto& [address, shown] : views) CHECK(shown != handle);
        CHECK(mapped != handle && content.erase(handle) == 1);
        return CUDA_SUCCESS;
    }
    int& here() {
        CHECK(mapped && allowed);
        for (const auto& [address, shown] : views) CHECK(shown == mapped && seen.contains(address));
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
    const std::vector<CUmemAccessDesc> access;
    const auto show = [&](CUdeviceptr address) {
        chunk.views.push_back({.address = address, .offset = 0, .bytes = 64, .access = &access});
    };
    show(1);
    int host = -2;
    const auto again = [](auto&& step) {
        for (int i = 0; step() != CUDA_SUCCESS; ++i) CHECK(i < 3);
    };
    const auto copy_fails = [&] { return driver.calls++ == driver.fails_at; };
    again([&] { return chunk.prepare(driver); });
    CHECK(chunk.resident() && !chunk.needs_copy_in());
    for (int value = 0; value < 5; ++value) {
        chunk.opened();
        if (value == 1) {
            show(2);
            CHECK(!chunk.resident());
            again([&] { return chunk.prepare(driver); });
        }
        if (value == 4) {
            again([&] { return Chunk::hide(driver, chunk.views.front()); });
            chunk.views.erase(chunk.views.begin());
        }
        CHECK(chunk.resident() && driver.views.size() == (value == 0 || value == 4 ? 1 : 2));
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
        CHECK(driver.views.empty());
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

// Sets of bytes against a table of them.
static void spans_are_sets() {
    std::mt19937_64 random(7);
    for (int round = 0; round < 300; ++round) {
        Spans spans;
        std::vector<bool> in(200);
        for (int i = 0; i < 30; ++i) {
            const uint64_t begin = random() % 200, end = begin + random() % (201 - begin);
            spans.add(begin, end);
            std::fill(in.begin() + long(begin), in.begin() + long(end), true);
            const uint64_t from = random() % 200, to = from + random() % (201 - from);
            std::vector<bool> rest(200);
            uint64_t last = 0;
            for (const Span& span : spans.without(from, to)) {
                CHECK(from <= span.begin && span.begin < span.end && span.end <= to && last <= span.begin);
                last = span.end;
                std::fill(rest.begin() + long(span.begin), rest.begin() + long(span.end), true);
            }
            bool whole = true, none = true;
            for (uint64_t at = 0; at < 200; ++at) {
                const bool inside = from <= at && at < to;
                CHECK(rest[at] == (inside && !in[at]));
                whole = whole && !(inside && !in[at]);
                none = none && !(inside && in[at]);
            }
            CHECK(spans.covers(from, to) == whole && (from == to || spans.touches(from, to) == !none));
        }
        CHECK(spans.bytes() == uint64_t(std::count(in.begin(), in.end(), true)));
    }
}

// What is copied, against memory in pages: after each journey everything is as it was but what was declared dead.
// Copies fail half-way, fingerprints are taken or not, programs change little, much or nothing.
static uint64_t the_host_has_what_lives() {
    constexpr uint64_t page = 4096, parts = 8, pages = parts * kPart / page, each = kPart / page;
    std::mt19937_64 random(17);
    uint64_t saved = 0;
    for (int life = 0; life < 60; ++life) {
        FakeDriver driver;
        Chunk chunk;
        chunk.bytes = parts * kPart;
        std::vector<uint64_t> device(pages), host(pages, 1), expected(pages);
        const auto look = [&] {
            std::vector<Fingerprint> prints(parts);
            for (uint64_t i = 0; i < parts; ++i) {
                prints[i] = {1, 1};
                for (uint64_t at = i * each; at < (i + 1) * each; ++at) {
                    prints[i].a = (prints[i].a ^ device[at]) * 0x9e3779b97f4a7c15;
                    prints[i].b = (prints[i].b + device[at]) * 0xff51afd7ed558ccd;
                }
            }
            return prints;
        };
        const auto copy = [&](const std::vector<Span>& list, const auto& from, auto& to, size_t most) {
            for (size_t i = 0; i < std::min(most, list.size()); ++i)
                for (uint64_t at = list[i].begin / page; at < (list[i].end + page - 1) / page; ++at)
                    to[at] = from[at];
        };
        CHECK(chunk.prepare(driver) == CUDA_SUCCESS);
        for (int journey = 0; journey < 60; ++journey) {
            chunk.opened();
            if (random() % 5 == 0) {  // its place is another's, before or after it was planned
                if (random() % 2) {
                    if (chunk.comparable()) chunk.now = look();
                    chunk.plan();
                }
                CHECK(chunk.may_leave_slot());
                chunk.leave_slot();
                std::generate(host.begin(), host.end(), [&] { return random(); });
                CHECK(!chunk.planned && !chunk.comparable());
                chunk.now.clear();
            }
            const bool much = random() % 8 == 0;
            for (uint64_t n = much ? pages : random() % 3; n > 0; --n) {
                // Often a page that changes often, and back to what it was.
                const uint64_t at = much ? random() % pages : random() % 2 * each + random() % 2;
                device[at] = expected[at] = random() % 2;
            }
            std::vector<bool> dead(pages);
            for (uint64_t n = random() % 4; n > 0; --n) {
                const uint64_t begin = random() % pages, end = begin + random() % (pages + 1 - begin);
                chunk.dead.add(begin * page, end * page);
                std::fill(dead.begin() + long(begin), dead.begin() + long(end), true);
            }
            const bool taken = random() % 4 != 0;
            if (taken && chunk.comparable()) chunk.now = look();
            chunk.plan();
            saved += chunk.bytes - bytes_of(chunk.to_copy);
            chunk.copying();
            if (random() % 3 == 0) {
                copy(chunk.to_copy, device, host, random() % 3);
                if (random() % 2) {  // it is not to go any more, after all
                    CHECK(!chunk.may_vacate());
                    for (uint64_t at = 0; at < pages; ++at)
                        if (dead[at]) expected[at] = device[at];
                    continue;
                }
                chunk.copying();
            }
            copy(chunk.to_copy, device, host, SIZE_MAX);
            if (taken) chunk.now = look();
            chunk.copied();
            if (random() % 4 == 0) {  // the same, a little later
                for (uint64_t at = 0; at < pages; ++at)
                    if (dead[at]) expected[at] = device[at];
                continue;
            }
            CHECK(chunk.may_vacate() && chunk.vacate(driver) == CUDA_SUCCESS && chunk.needs_copy_in());
            std::generate(device.begin(), device.end(), [&] { return random(); });
            CHECK(chunk.prepare(driver) == CUDA_SUCCESS);
            copy(chunk.to_copy_in(), host, device, SIZE_MAX);
            chunk.arrived();
            for (uint64_t at = 0; at < pages; ++at) {
                if (dead[at]) expected[at] = device[at];
                CHECK(device[at] == expected[at]);
            }
        }
        chunk.discard();
        CHECK(chunk.vacate(driver) == CUDA_SUCCESS);
    }
    return saved;
}

// A submission ends a declaration before it is over, whenever it comes.
static void a_submission_takes_the_ticket() {
    MoveGate gate(nullptr);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> submitted{0}, now{0};
    std::thread program([&] {
        while (!stop) {
            const uint64_t seen = now;  // one that came before the ticket was given may miss it
            if (!gate.enter()) continue;
            submitted = seen;
            gate.leave();
        }
    });
    for (uint64_t ticket = 1; ticket <= 2000; ++ticket) {
        gate.give_ticket(ticket);
        now = ticket;
        gate.close();
        CHECK(gate.await_empty(5'000'000'000));
        if (gate.ticket() == ticket) {
            CHECK(submitted != ticket);
        } else {
            CHECK(gate.ticket() == 0);
        }
        gate.open();
        if (ticket % 16 == 0) std::this_thread::yield();
    }
    stop = true;
    program.join();
    gate.give_ticket(1);
    gate.close();
    CHECK(!gate.enter() && gate.ticket() == 1);  // who is turned away takes nothing
    gate.open();
    CHECK(gate.enter() && gate.ticket() == 0);
    gate.leave();
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
    MoveGate gate(nullptr);
    std::atomic<bool> stop{false};
    std::atomic<int> inside{0}, passed{0};
    bool away = false;  // plain: a thread sanitizer sees every thread that reads it meanwhile
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
    spans_are_sets();
    CHECK(the_host_has_what_lives() > 0);
    a_submission_takes_the_ticket();
    pieces_do_not_overlap();
    the_gate_keeps_apart();
    std::printf("positions %d\n", calls);
    return 0;
}
