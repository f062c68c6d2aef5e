// PointerMap against std::unordered_map, and the size model. Exits with 1 and names the first error.
// accounting_test PAIRS: this many inserts and removals in a full map, to be counted.
#include <cstdlib>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "hook/memory/size.h"
#include "hook/memory/pointer_map.h"

using namespace gemlet::hook;

static void same_as_reference() {
    PointerMap<uint64_t> map;
    std::unordered_map<uint64_t, uint64_t> reference;
    std::mt19937_64 random(7);
    for (int i = 0; i < 400'000; ++i) {
        uint64_t key = (1 + random() % 5000) * 512;
        if (random() % 2) {
            auto before = map.put(key, i);
            CHECK(before.has_value() == reference.contains(key));
            reference[key] = i;
        } else {
            auto taken = map.take(key);
            auto expected = reference.find(key);
            CHECK(taken.has_value() == (expected != reference.end()));
            if (!taken) continue;
            CHECK(*taken == expected->second);
            reference.erase(expected);
        }
    }
    size_t odd = 0;
    for (auto& [key, value] : reference) odd += value % 2;
    size_t taken = 0;
    map.take_all([](uint64_t v) { return v % 2 == 1; },
                 [&](uint64_t key, uint64_t v) {
                     CHECK(reference.at(key) == v);
                     ++taken;
                 });
    CHECK(taken == odd);
    for (auto& [key, value] : reference) CHECK(map.take(key).has_value() == (value % 2 == 0));
}

static void many_threads() {
    PointerMap<uint64_t> map;
    std::vector<std::thread> threads;
    for (uint64_t t = 1; t <= 4; ++t)
        threads.emplace_back([&map, t] {
            for (uint64_t i = 1; i <= 50'000; ++i) map.put(t << 40 | i << 9, i);
            for (uint64_t i = 1; i <= 50'000; ++i) CHECK(map.take(t << 40 | i << 9) == i);
        });
    for (auto& thread : threads) thread.join();
}

// Its instructions are counted.
extern "C" [[gnu::noinline]] void insert_and_remove(PointerMap<uint64_t>& map, uint64_t pairs) {
    for (uint64_t i = 0; i < pairs; ++i) {
        const uint64_t key = (200'000 + i) << 21;
        map.put(key, 1);
        map.take(key);
    }
}

static void sizes() {
    CHECK(round_up(1, kBlock) == kBlock);
    CHECK(round_up(kBlock, kBlock) == kBlock);
    CHECK(shares_slab(kSharesUpTo) && !shares_slab(kSharesUpTo + 1));
    CUDA_ARRAY3D_DESCRIPTOR array{1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    CHECK(array_bytes(array, 1) == 16 * kMiB);
    CHECK(array_bytes(array, 11) >= 16 * kMiB + 16 * kMiB / 3 - kBlock && array_bytes(array, 11) <= 24 * kMiB);
    array = {1024, 1024, 6, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED};
    CHECK(array_bytes(array, 1) == 6 * kMiB);
    array = {64, 0, 0, CU_AD_FORMAT_HALF, 2, 0};
    CHECK(array_bytes(array, 1) == kArrayUnit);
    array = {1024, 1024, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0};
    CHECK(array_bytes(array, 1) == 512 << 10);
    array = {SIZE_MAX, SIZE_MAX, SIZE_MAX, CU_AD_FORMAT_FLOAT, 4, 0};
    CHECK(array_bytes(array, 16) == kAbsurd);
}

int main(int argc, char** argv) {
    if (argc > 1) {
        PointerMap<uint64_t> map;
        for (uint64_t i = 1; i <= 100'000; ++i) map.put(i << 21, i);
        insert_and_remove(map, std::strtoull(argv[1], nullptr, 10));
        return 0;
    }
    same_as_reference();
    many_threads();
    sizes();
}
