#include "program.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>

// SPIN_PTX is the path of src/gemlet/cli/spin.ptx, which bench/machine.py gives when it compiles this.
asm(R"(
    .section .rodata
spin_ptx:
    .incbin ")" SPIN_PTX R"("
    .byte 0
    .text
)");
extern "C" const char spin_ptx[];

void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    const char* name = "?";
    cuGetErrorName(result, &name);
    std::fprintf(stderr, "client: %s: %s\n", what, name);
    std::exit(1);
}

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1'000'000'000u + uint64_t(t.tv_nsec);
}

void sleep_until(uint64_t ns) {
    timespec t{time_t(ns / 1'000'000'000u), long(ns % 1'000'000'000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
}

uint64_t wait_for_start(const Options& o) {
    if (!o.wait) return now_ns();
    std::puts("ready");
    std::fflush(stdout);
    uint64_t start = 0;
    if (std::scanf("%" SCNu64, &start) != 1) std::exit(1);  // the starting process is gone
    sleep_until(start);
    return start;
}

void write_log(const std::string& path, const std::vector<Completed>& log) {
    if (path.empty()) return;
    FILE* f = std::fopen(path.c_str(), "w");
    if (!f) {
        std::perror(path.c_str());
        std::exit(1);
    }
    for (const Completed& c : log) {
        std::fprintf(f, "%" PRIu64 " %.0f", c.at, c.work);
        if (c.latency >= 0) std::fprintf(f, " %.0f", c.latency);
        std::fputc('\n', f);
    }
    if (std::fclose(f) != 0) std::exit(1);
}

Program::Program(const Options& o) : o_(o), scale_(o.scale) {
    CHECK(cuInit(0));
    CUdevice device;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context_, device));
    CHECK(cuCtxSetCurrent(context_));
    int processors = 0, threads = 0;
    CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device));
    // large: a block of 1024 threads on every multiprocessor; where one takes 2048, a neighbour under MPS fits
    // beside. full: every thread slot taken, so that nothing fits beside. small: many short blocks in 8 waves.
    block_ = o.shape == "small" ? 128 : 1024;
    grid_ = unsigned(processors);
    if (o.shape == "full") grid_ *= unsigned(threads) / block_;
    if (o.shape == "small") grid_ *= 16 * 8;
    // Under MPS a program may see a part of the multiprocessors; its kernels are to be the same work.
    if (o.blocks) grid_ = o.blocks;
    CHECK(cuModuleLoadData(&module_, spin_ptx));
    CHECK(cuModuleGetFunction(&spin_, module_, "spin"));
    CHECK(cuModuleGetFunction(&empty_, module_, "empty"));
    CHECK(cuMemAlloc(&out_, 4096));
    if (o.stream == "own") CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    if (o.stream == "thread") stream_ = CU_STREAM_PER_THREAD;
}

CUresult Program::try_launch(double us) {
    auto ns = uint64_t(us * 1000);
    void* parameters[] = {&ns, &scale_, &out_};
    return cuLaunchKernel(spin_, grid_, 1, 1, block_, 1, 1, 0, stream_, parameters, nullptr);
}

void Program::launch(double us) {
    CHECK(try_launch(us));
}

void Program::launch_and_pause() {
    launch(o_.kernel_us);
    if (o_.gap_us <= 0) return;
    const uint64_t until = now_ns() + uint64_t(o_.gap_us * 1000);
    if (o_.gap_us >= 300)
        sleep_until(until);
    else
        while (now_ns() < until) continue;
}

void Program::launch_empty(Launch launch) {
    CHECK(launch(empty_, 1, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr));
}

void Program::batch(int marks) {
    if (graph_) {
        CHECK(cuGraphLaunch(graph_, stream_));
        return;
    }
    for (int i = 0; i < o_.batch / marks; ++i) launch_and_pause();
}

void Program::make_graph() {
    CUgraph graph;
    CHECK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < o_.batch; ++i) launch(o_.kernel_us);
    CHECK(cuStreamEndCapture(stream_, &graph));
    CHECK(cuGraphInstantiate(&graph_, graph, 0));
}
