// What the hook charges against what the driver holds, call by call. One case a run: memory_test CASE.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_memory.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
const CUstream kStream = reinterpret_cast<CUstream>(0x10000);

template <class F>
F* hook_function(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (!found) std::printf("%s is missing: is the hook preloaded?\n", name), std::exit(2);
    return reinterpret_cast<F*>(found);
}

uint64_t used() {
    return hook_function<unsigned long long(int)>("gemlet_test_used")(0);
}
uint64_t held() {
    return hook_function<unsigned long long(int)>("gemlet_test_held")(0);
}
uint64_t refusals() {
    return hook_function<unsigned long long()>("gemlet_test_refusals")();
}
int contexts() {
    return hook_function<int()>("gemlet_test_contexts")();
}
void limit(uint64_t bytes) {
    setenv("GEMLET_TEST_LIMIT", std::to_string(bytes).c_str(), 1);
}

#define SAME(a, b) same(a, b, #a " == " #b, __LINE__)

void same(uint64_t a, uint64_t b, const char* text, int line) {
    if (a != b)
        std::printf("line %d: not %s: %llu, %llu\n", line, text, (unsigned long long)a, (unsigned long long)b),
            std::exit(1);
}

// A way to take `size` bytes and to give them back.
struct Way {
    const char* take_name;
    const char* drop_name;
    std::function<CUresult(CUdeviceptr*, uint64_t)> take;
    std::function<CUresult(CUdeviceptr)> drop;
};

CUDA_ARRAY3D_DESCRIPTOR described(uint64_t bytes) {
    return {bytes / 1024 / 4, 256, 0, CU_AD_FORMAT_FLOAT, 4, 0};
}

const std::vector<Way> ways = {
    {"cuMemAlloc_v2", "cuMemFree_v2", cuMemAlloc_v2, cuMemFree_v2},
    {"cuMemAllocManaged", "cuMemFree_v2", [](auto* p, auto n) { return cuMemAllocManaged(p, n, 1); }, cuMemFree_v2},
    {"cuMemAllocPitch_v2", "cuMemFree_v2",
     [](auto* p, auto n) {
         size_t pitch;
         return cuMemAllocPitch_v2(p, &pitch, n / 1024, 1024, 4);
     },
     cuMemFree_v2},
    {"cuArrayCreate_v2", "cuArrayDestroy",
     [](auto* p, auto n) {
         CUDA_ARRAY_DESCRIPTOR d{n / 1024 / 4, 256, CU_AD_FORMAT_FLOAT, 4};
         return cuArrayCreate_v2(reinterpret_cast<CUarray*>(p), &d);
     },
     [](auto p) { return cuArrayDestroy(reinterpret_cast<CUarray>(p)); }},
    {"cuArray3DCreate_v2", "cuArrayDestroy",
     [](auto* p, auto n) {
         auto d = described(n);
         return cuArray3DCreate_v2(reinterpret_cast<CUarray*>(p), &d);
     },
     [](auto p) { return cuArrayDestroy(reinterpret_cast<CUarray>(p)); }},
    {"cuMipmappedArrayCreate", "cuMipmappedArrayDestroy",
     [](auto* p, auto n) {
         auto d = described(n);
         return cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(p), &d, 1);
     },
     [](auto p) { return cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(p)); }},
    {"cuMemCreate", "cuMemRelease",
     [](auto* p, auto n) {
         CUmemAllocationProp properties{};
         properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
         return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(p), n, &properties, 0);
     },
     [](auto p) { return cuMemRelease(p); }},
    {"cuMemAllocAsync", "cuMemFreeAsync", [](auto* p, auto n) { return cuMemAllocAsync(p, n, nullptr); },
     [](auto p) { return cuMemFreeAsync(p, nullptr); }},
    {"cuMemAllocAsync_ptsz", "cuMemFree_v2", [](auto* p, auto n) { return cuMemAllocAsync_ptsz(p, n, nullptr); },
     cuMemFree_v2},
};

bool is_pooled(const Way& way) {
    return std::strstr(way.take_name, "Async");
}

void each_way_at_the_limit() {
    constexpr uint64_t kSize = 64 * kMiB;
    for (const Way& way : ways) {
        std::printf("%s\n", way.take_name);
        for (uint64_t over : {0, 1, 2}) {  // the limit is one block above, at, and one block below what is needed
            fake_shrink_pools();
            size_t ignored;
            cuMemGetInfo_v2(&ignored, &ignored);
            SAME(used(), 0);
            limit(kSize + 2 * kMiB - over * 2 * kMiB);
            CUdeviceptr p = 0;
            CUresult result = way.take(&p, kSize);
            SAME(uint64_t(result), over == 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
            SAME(used(), fake_held());
            SAME(held(), used());
            if (result == CUDA_SUCCESS) SAME(uint64_t(way.drop(p)), CUDA_SUCCESS);
            if (!is_pooled(way)) SAME(used(), 0);
        }
    }
}

void what_the_driver_refuses_is_given_back() {
    limit(1024 * kMiB);
    for (const Way& way : ways) {
        std::printf("%s\n", way.take_name);
        const char* real =
            std::strcmp(way.take_name, "cuMemAllocAsync_ptsz") == 0 ? "cuMemAllocAsync" : way.take_name;
        for (uint64_t size : {64 * kMiB, 4 * kMiB}) {
            CUdeviceptr p = 0;
            uint64_t before = used();
            fake_fail_next(real);
            SAME(uint64_t(way.take(&p, size)), CUDA_ERROR_UNKNOWN);
            SAME(used(), before);
            SAME(uint64_t(way.take(&p, size)), CUDA_SUCCESS);
            before = used();
            fake_fail_next(way.drop_name);
            SAME(uint64_t(way.drop(p)), CUDA_ERROR_UNKNOWN);
            SAME(used(), before);
            SAME(uint64_t(way.drop(p)), CUDA_SUCCESS);
            SAME(used(), fake_held());
        }
    }
}

void small_allocations_share_slabs() {
    limit(6 * kMiB);
    std::vector<CUdeviceptr> all;
    CUdeviceptr p;
    while (cuMemAlloc_v2(&p, 100'000) == CUDA_SUCCESS) {
        all.push_back(p);
        SAME(used(), fake_held());
    }
    SAME(all.size(), 3 * (2 * kMiB / 100'352));  // every slab of the limit is used to its end
    SAME(used(), 6 * kMiB);
    for (CUdeviceptr each : all) {
        SAME(uint64_t(cuMemFree_v2(each)), CUDA_SUCCESS);
        SAME(used(), fake_held());
    }
    SAME(used(), 0);
    fake_fail_next("cuMemAlloc_v2");
    SAME(uint64_t(cuMemAlloc_v2(&p, 5)), CUDA_ERROR_UNKNOWN);
    SAME(used(), 0);
}

void strange_sizes_are_the_drivers_business() {
    limit(64 * kMiB);
    CUdeviceptr p;
    SAME(uint64_t(cuMemAlloc_v2(&p, 0)), CUDA_ERROR_INVALID_VALUE);
    SAME(uint64_t(cuMemAlloc_v2(&p, SIZE_MAX - 4)), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(uint64_t(cuMemAlloc_v2(nullptr, 4 * kMiB)), CUDA_ERROR_INVALID_VALUE);
    size_t pitch;
    CHECK(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX / 2, 8, 4) != CUDA_SUCCESS);
    SAME(uint64_t(cuMemFree_v2(0x123456)), CUDA_ERROR_INVALID_VALUE);
    SAME(used(), 0);
}

void pools_count_what_they_reserve() {
    limit(96 * kMiB);
    CUdeviceptr a, b, c;
    SAME(uint64_t(cuMemAllocAsync(&a, 1000, nullptr)), CUDA_SUCCESS);
    SAME(used(), 32 * kMiB);
    SAME(uint64_t(cuMemAllocAsync(&b, 60 * kMiB, nullptr)), CUDA_SUCCESS);
    SAME(used(), fake_held());
    SAME(uint64_t(cuMemFreeAsync(b, nullptr)), CUDA_SUCCESS);
    SAME(used(), fake_held());  // kept by the pool
    CHECK(used() >= 64 * kMiB);
    SAME(uint64_t(cuMemAlloc_v2(&c, 60 * kMiB)), CUDA_ERROR_OUT_OF_MEMORY);
    fake_shrink_pools();  // without a call of ours
    SAME(uint64_t(cuMemAlloc_v2(&c, 60 * kMiB)), CUDA_SUCCESS);
    SAME(used(), fake_held());

    CUmemPoolProps properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemoryPool pool;
    SAME(uint64_t(cuMemFree_v2(c)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemPoolCreate(&pool, &properties)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemAllocFromPoolAsync(&b, 10 * kMiB, pool, nullptr)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemAllocFromPoolAsync(&c, 10 * kMiB, pool, nullptr)), CUDA_SUCCESS);
    SAME(used(), 64 * kMiB);
    SAME(uint64_t(cuMemPoolDestroy(pool)), CUDA_SUCCESS);  // lives on until its last allocation is gone
    SAME(used(), fake_held());
    SAME(used(), 64 * kMiB);
    SAME(uint64_t(cuMemPoolDestroy(pool)), CUDA_ERROR_INVALID_VALUE);
    SAME(uint64_t(cuMemFreeAsync(b, nullptr)), CUDA_SUCCESS);
    SAME(used(), fake_held());
    SAME(uint64_t(cuMemFreeAsync(c, nullptr)), CUDA_SUCCESS);
    SAME(used(), 32 * kMiB);
    cuDeviceGetMemPool(&pool, 0);
    cuMemFreeAsync(a, nullptr);
    SAME(uint64_t(cuMemPoolTrimTo(pool, 0)), CUDA_SUCCESS);
    SAME(used(), 0);
}

void pools_of_the_host_are_not_counted() {
    limit(64 * kMiB);
    CUmemPoolProps properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_HOST, {0}};
    CUmemoryPool pools[2];
    SAME(uint64_t(cuMemPoolCreate(&pools[0], &properties)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemGetDefaultMemPool(&pools[1], &properties.location, CU_MEM_ALLOCATION_TYPE_PINNED)),
         CUDA_SUCCESS);
    for (CUmemoryPool pool : pools) {
        CUdeviceptr p;
        SAME(uint64_t(cuMemAllocFromPoolAsync(&p, 400 * kMiB, pool, nullptr)), CUDA_SUCCESS);
        SAME(used(), fake_held());
        SAME(used(), 0);
        SAME(uint64_t(cuMemFreeAsync(p, nullptr)), CUDA_SUCCESS);
    }
}

// As of devices whose memory has parts.
void a_part_of_the_devices_memory_counts() {
    limit(64 * kMiB);
    CUmemAllocationProp physical{};
    physical.location.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    physical.location.localized = {0, 1};
    CUmemGenericAllocationHandle handle;
    SAME(uint64_t(cuMemCreate(&handle, 40 * kMiB, &physical, 0)), CUDA_SUCCESS);
    SAME(used(), 40 * kMiB);
    SAME(uint64_t(cuMemCreate(&handle, 40 * kMiB, &physical, 0)), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(uint64_t(cuMemRelease(handle)), CUDA_SUCCESS);
    SAME(used(), 0);
}

void nothing_is_charged_or_read_in_a_capture() {
    limit(64 * kMiB);
    CUdeviceptr p = 0, q;
    SAME(uint64_t(cuMemAllocAsync(&q, kMiB, nullptr)), CUDA_SUCCESS);
    const uint64_t before = used();
    SAME(uint64_t(cuStreamBeginCapture_v2(kStream, CU_STREAM_CAPTURE_MODE_GLOBAL)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemAllocAsync(&p, 512 * kMiB, kStream)), CUDA_SUCCESS);
    SAME(used(), before);
    SAME(uint64_t(cuMemAllocAsync(&q, 40 * kMiB, nullptr)), CUDA_ERROR_OUT_OF_MEMORY);  // another stream: counted
    SAME(uint64_t(fake_pool_reads_while_capturing()), 0);                               // i.e. all of them relaxed
    CUgraph graph;
    SAME(uint64_t(cuStreamEndCapture(kStream, &graph)), CUDA_SUCCESS);
    SAME(used(), before);
}

void physical_memory_lives_as_long_as_it_is_mapped() {
    limit(10 * kMiB);
    CUmemAllocationProp properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    constexpr CUdeviceptr at = 0x500000000000;
    CUmemGenericAllocationHandle one, two, again;
    SAME(uint64_t(cuMemCreate(&one, 4 * kMiB, &properties, 0)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemCreate(&two, 4 * kMiB, &properties, 0)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemMap(at, 4 * kMiB, 0, one, 0)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemMap(at + 4 * kMiB, 4 * kMiB, 0, two, 0)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemRelease(one)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemRelease(two)), CUDA_SUCCESS);
    SAME(used(), 8 * kMiB);
    SAME(uint64_t(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at))), CUDA_SUCCESS);
    fake_fail_next("cuMemUnmap");
    SAME(uint64_t(cuMemUnmap(at, 8 * kMiB)), CUDA_ERROR_UNKNOWN);
    SAME(used(), 8 * kMiB);
    SAME(uint64_t(cuMemUnmap(at, 8 * kMiB)), CUDA_SUCCESS);  // both at once
    SAME(used(), 4 * kMiB);
    SAME(uint64_t(cuMemRelease(again)), CUDA_SUCCESS);
    SAME(used(), 0);
    SAME(fake_held(), 0);
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
    SAME(uint64_t(cuMemCreate(&one, 400 * kMiB, &properties, 0)), CUDA_SUCCESS);
    SAME(used(), 0);
}

void contexts_take_their_memory_with_them() {
    limit(1024 * kMiB);
    setenv("GEMLET_TEST_CONTEXT", std::to_string(300 * kMiB).c_str(), 1);
    CUcontext mine, primary;
    SAME(uint64_t(cuCtxCreate_v2(&mine, 0, 0)), CUDA_SUCCESS);
    SAME(uint64_t(contexts()), 1);
    CUdeviceptr p;
    SAME(uint64_t(cuMemAlloc_v2(&p, 100 * kMiB)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemAlloc_v2(&p, 100)), CUDA_SUCCESS);
    CUDA_ARRAY_DESCRIPTOR flat{1024, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUarray array;
    SAME(uint64_t(cuArrayCreate_v2(&array, &flat)), CUDA_SUCCESS);
    SAME(used(), 118 * kMiB);  // the daemon accounts for the context now
    fake_fail_next("cuCtxDestroy_v2");
    SAME(uint64_t(cuCtxDestroy_v2(mine)), CUDA_ERROR_UNKNOWN);
    SAME(used(), 118 * kMiB);
    SAME(uint64_t(contexts()), 1);
    SAME(uint64_t(cuCtxDestroy_v2(mine)), CUDA_SUCCESS);
    SAME(used(), 0);
    SAME(uint64_t(contexts()), 0);

    for (int i = 0; i < 3; ++i) SAME(uint64_t(cuDevicePrimaryCtxRetain(&primary, 0)), CUDA_SUCCESS);
    SAME(uint64_t(contexts()), 1);  // several libraries, one context
    cuCtxSetCurrent(primary);
    SAME(uint64_t(cuMemAlloc_v2(&p, 100 * kMiB)), CUDA_SUCCESS);
    for (int i = 0; i < 2; ++i) SAME(uint64_t(cuDevicePrimaryCtxRelease_v2(0)), CUDA_SUCCESS);
    SAME(used(), 100 * kMiB);
    SAME(uint64_t(cuDevicePrimaryCtxRelease_v2(0)), CUDA_SUCCESS);
    SAME(used(), 0);
    SAME(uint64_t(contexts()), 0);

    SAME(uint64_t(cuDevicePrimaryCtxRetain(&primary, 0)), CUDA_SUCCESS);
    cuCtxSetCurrent(primary);
    SAME(uint64_t(cuMemAlloc_v2(&p, 100 * kMiB)), CUDA_SUCCESS);
    SAME(uint64_t(cuDevicePrimaryCtxReset_v2(0)), CUDA_SUCCESS);
    SAME(used(), 0);
    SAME(uint64_t(contexts()), 0);

    limit(200 * kMiB);
    SAME(uint64_t(cuCtxCreate_v2(&mine, 0, 0)), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(uint64_t(cuDevicePrimaryCtxRetain(&primary, 0)), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(used(), 0);
    limit(400 * kMiB);
    fake_fail_next("cuCtxCreate_v2");
    SAME(uint64_t(cuCtxCreate_v2(&mine, 0, 0)), CUDA_ERROR_UNKNOWN);
    SAME(used(), 0);
}

void graphs_count_what_they_reserve() {
    limit(128 * kMiB);
    CUdeviceptr p;
    fake_set_graph_memory(96 * kMiB);
    // What the gate calls after a launch of a graph with allocation nodes.
    hook_function<void(int)>("gemlet_test_graph_memory_changed")(0);
    SAME(used(), 96 * kMiB);
    SAME(uint64_t(cuMemAlloc_v2(&p, 64 * kMiB)), CUDA_ERROR_OUT_OF_MEMORY);
    fake_set_graph_memory(32 * kMiB);
    SAME(uint64_t(cuMemAlloc_v2(&p, 64 * kMiB)), CUDA_SUCCESS);
    SAME(used(), fake_held());
    SAME(uint64_t(cuDeviceGraphMemTrim(0)), CUDA_SUCCESS);
    SAME(used(), 64 * kMiB);
}

void the_limit_is_what_the_program_sees() {
    limit(64 * kMiB);
    size_t free, total;
    CUdeviceptr p;
    SAME(uint64_t(cuMemAlloc_v2(&p, 24 * kMiB)), CUDA_SUCCESS);
    SAME(uint64_t(cuMemGetInfo_v2(&free, &total)), CUDA_SUCCESS);
    SAME(total, 64 * kMiB);
    SAME(free, 40 * kMiB);
    SAME(uint64_t(cuMemGetInfo_v2(nullptr, nullptr)), CUDA_SUCCESS);
    SAME(uint64_t(cuDeviceTotalMem_v2(&total, 0)), CUDA_SUCCESS);
    SAME(total, 64 * kMiB);
    limit(8 * kMiB);  // lowered while in use
    SAME(uint64_t(cuMemGetInfo_v2(&free, &total)), CUDA_SUCCESS);
    SAME(free, 0);
    SAME(total, 8 * kMiB);
    limit(uint64_t{100} << 30);  // more than the card
    SAME(uint64_t(cuMemGetInfo_v2(&free, nullptr)), CUDA_SUCCESS);
    SAME(free, (uint64_t{80} << 30) - 24 * kMiB);
    unsetenv("GEMLET_TEST_LIMIT");
    SAME(uint64_t(cuMemGetInfo_v2(&free, &total)), CUDA_SUCCESS);
    SAME(total, uint64_t{80} << 30);
}

void a_handle_that_threads_open_at_once_is_charged_once() {
    constexpr uint64_t kShared = 64 * kMiB;
    constexpr int kThreads = 4, kRounds = 500;
    limit(kShared);
    fake_openers_meet(kThreads);
    std::barrier all(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&] {
            for (int round = 0; round < kRounds; ++round) {
                CUdeviceptr p = 0;
                SAME(uint64_t(cuIpcOpenMemHandle_v2(&p, {}, 0)), CUDA_SUCCESS);
                all.arrive_and_wait();
                SAME(used(), kShared);
                SAME(fake_held(), kShared);
                all.arrive_and_wait();
                SAME(uint64_t(cuIpcCloseMemHandle(p)), CUDA_SUCCESS);
                all.arrive_and_wait();
                SAME(used(), 0);
                SAME(fake_held(), 0);
                all.arrive_and_wait();
            }
        });
    for (auto& thread : threads) thread.join();
}

void threads_at_the_limit() {
    constexpr uint64_t kLimit = 64 * kMiB;
    limit(kLimit);
    CUdeviceptr most;  // so that each thread meets the limit, also if they run one after another
    SAME(uint64_t(cuMemAlloc_v2(&most, 40 * kMiB)), CUDA_SUCCESS);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([t] {
            std::vector<CUdeviceptr> mine;
            for (int i = 0; i < 2000; ++i) {
                CUdeviceptr p;
                const uint64_t size = i % 3 == t % 3 ? 3000 * (1 + i % 200) : (1 + i % 8) * kMiB;
                if (cuMemAlloc_v2(&p, size) == CUDA_SUCCESS) mine.push_back(p);
                CHECK(used() <= kLimit);
                if (mine.size() > 6 || (i % 5 == 0 && !mine.empty())) {
                    SAME(uint64_t(cuMemFree_v2(mine.front())), CUDA_SUCCESS);
                    mine.erase(mine.begin());
                }
            }
            for (CUdeviceptr p : mine) cuMemFree_v2(p);
        });
    for (auto& thread : threads) thread.join();
    SAME(uint64_t(cuMemFree_v2(most)), CUDA_SUCCESS);
    SAME(fake_held(), 0);
    SAME(used(), 0);
    CHECK(refusals() > 0);
}

const struct {
    const char* name;
    void (*run)();
} cases[] = {
#define CASE(name) {#name, name}
    CASE(each_way_at_the_limit),
    CASE(what_the_driver_refuses_is_given_back),
    CASE(small_allocations_share_slabs),
    CASE(strange_sizes_are_the_drivers_business),
    CASE(pools_count_what_they_reserve),
    CASE(pools_of_the_host_are_not_counted),
    CASE(a_part_of_the_devices_memory_counts),
    CASE(nothing_is_charged_or_read_in_a_capture),
    CASE(physical_memory_lives_as_long_as_it_is_mapped),
    CASE(contexts_take_their_memory_with_them),
    CASE(graphs_count_what_they_reserve),
    CASE(the_limit_is_what_the_program_sees),
    CASE(a_handle_that_threads_open_at_once_is_charged_once),
    CASE(threads_at_the_limit),
};

}  // namespace

int main(int argc, char** argv) {
    for (auto& each : cases) {
        if (argc < 2) std::puts(each.name);
        if (argc < 2 || std::strcmp(argv[1], each.name) != 0) continue;
        cuInit(0);
        each.run();
        std::puts("ok");
        return 0;
    }
    return argc < 2 ? 0 : 3;
}
