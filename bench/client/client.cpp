// The benchmarks' CUDA program: plain driver API, knows nothing of gemlet. Prints one line of JSON.
//
//   client calibrate --kernel-us U [--shape large|small]
//   client work      --kernel-us U --scale S [--batch K] [--depth D] [--graph] [--stream default|own|thread]
//                    [--seconds T] [--start NS] [--file PATH]      batches back to back; PATH gets "ns work_ns" lines
//                    [--memory-mib M]   held meanwhile, written once and looked at in the end
//                    [--cpu F] [--phase S]   after S seconds of batches does without the device, for F of all time
//   client uuid                                                    of device 0, in hexadecimal
//   client latency   --kernel-us U --scale S --rate HZ ...         Poisson requests of one kernel each, waits in us
//   client launch    [--count N]                                   empty kernels: ns per launch, queue kept short
//   client alloc     [--count N]                                   cuMemAlloc + cuMemFree of 4 MiB, ns per pair
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "spin.ptx.h"

namespace {

void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    const char* name = "?";
    cuGetErrorName(result, &name);
    std::fprintf(stderr, "client: %s: %s\n", what, name);
    std::exit(1);
}
#define CHECK(call) check(call, #call)

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1'000'000'000u + uint64_t(t.tv_nsec);
}

void sleep_until(uint64_t ns) {
    timespec t{time_t(ns / 1'000'000'000u), long(ns % 1'000'000'000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
}

struct Options {
    std::string mode, shape = "large", stream = "own", file;
    double kernel_us = 100, seconds = 5, rate = 100;
    uint64_t scale = 0, start = 0;
    uint64_t memory_mib = 0;
    double cpu = 0, phase = 1;
    int batch = 10, depth = 4, count = 100'000;
    bool graph = false;
};

Options parse(int argc, char** argv) {
    Options o;
    if (argc > 1) o.mode = argv[1];
    for (int i = 2; i < argc; ++i) {
        std::string key = argv[i];
        if (key == "--graph") {
            o.graph = true;
            continue;
        }
        if (i + 1 >= argc) break;
        const char* value = argv[++i];
        if (key == "--kernel-us")
            o.kernel_us = std::atof(value);
        else if (key == "--seconds")
            o.seconds = std::atof(value);
        else if (key == "--memory-mib")
            o.memory_mib = std::strtoull(value, nullptr, 10);
        else if (key == "--cpu")
            o.cpu = std::atof(value);
        else if (key == "--phase")
            o.phase = std::atof(value);
        else if (key == "--rate")
            o.rate = std::atof(value);
        else if (key == "--scale")
            o.scale = std::strtoull(value, nullptr, 10);
        else if (key == "--start")
            o.start = std::strtoull(value, nullptr, 10);
        else if (key == "--batch")
            o.batch = std::atoi(value);
        else if (key == "--depth")
            o.depth = std::atoi(value);
        else if (key == "--count")
            o.count = std::atoi(value);
        else if (key == "--shape")
            o.shape = value;
        else if (key == "--stream")
            o.stream = value;
        else if (key == "--file")
            o.file = value;
        else {
            std::fprintf(stderr, "client: unknown option %s\n", key.c_str());
            std::exit(2);
        }
    }
    return o;
}

class Program {
  public:
    explicit Program(const Options& o) : o_(o) {
        CHECK(cuInit(0));
        CUdevice device;
        CHECK(cuDeviceGet(&device, 0));
        CHECK(cuDevicePrimaryCtxRetain(&context_, device));
        CHECK(cuCtxSetCurrent(context_));
        int processors = 0;
        CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
        // large: one block an SM, every thread slot taken. small: many short blocks in 8 waves.
        grid_ = o.shape == "large" ? unsigned(processors) : unsigned(processors) * 16 * 8;
        block_ = o.shape == "large" ? 1024 : 128;
        CHECK(cuModuleLoadData(&module_, kSpinPtx));
        CHECK(cuModuleGetFunction(&spin_, module_, "spin"));
        CHECK(cuModuleGetFunction(&empty_, module_, "empty"));
        CHECK(cuMemAlloc(&out_, 4096));
        if (o.stream == "own") CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        if (o.stream == "thread") stream_ = CU_STREAM_PER_THREAD;
    }

    void launch(double us, uint64_t scale) {
        auto ns = uint64_t(us * 1000);
        void* parameters[] = {&ns, &scale, &out_};
        CHECK(cuLaunchKernel(spin_, grid_, 1, 1, block_, 1, 1, 0, stream_, parameters, nullptr));
    }
    void launch_empty() { CHECK(cuLaunchKernel(empty_, 1, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr)); }
    void synchronize() { CHECK(cuStreamSynchronize(stream_)); }
    CUstream stream() const { return stream_; }

    void batch() {
        if (graph_) {
            CHECK(cuGraphLaunch(graph_, stream_));
            return;
        }
        for (int i = 0; i < o_.batch; ++i) launch(o_.kernel_us, o_.scale);
    }

    void make_graph() {
        CUgraph graph;
        CHECK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (int i = 0; i < o_.batch; ++i) launch(o_.kernel_us, o_.scale);
        CHECK(cuStreamEndCapture(stream_, &graph));
        CHECK(cuGraphInstantiate(&graph_, graph, 0));
    }

  private:
    const Options& o_;
    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
    CUfunction spin_ = nullptr, empty_ = nullptr;
    CUdeviceptr out_ = 0;
    CUstream stream_ = nullptr;
    CUgraphExec graph_ = nullptr;
    unsigned grid_ = 1, block_ = 1;
};

// Device time of one kernel that runs n iterations = (n << 16) / scale ns, from a long queue of them.
double measure_us(Program& p, double us, uint64_t scale, int count) {
    CUevent begin, end;
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(begin, p.stream()));
    for (int i = 0; i < count; ++i) p.launch(us, scale);
    CHECK(cuEventRecord(end, p.stream()));
    CHECK(cuEventSynchronize(end));
    float ms = 0;
    CHECK(cuEventElapsedTime(&ms, begin, end));
    return ms * 1000 / count;
}

int calibrate(const Options& o) {
    Program p(o);
    uint64_t scale = 65536 / 4;
    measure_us(p, o.kernel_us, scale, 50);  // warm: modules, clocks
    for (int round = 0; round < 6; ++round) {
        int count = std::max(20, int(100'000 / o.kernel_us));
        double got = measure_us(p, o.kernel_us, scale, count);
        scale = std::max<uint64_t>(1, uint64_t(double(scale) * o.kernel_us / got));
    }
    std::printf("{\"scale\": %llu}\n", static_cast<unsigned long long>(scale));
    return 0;
}

// Device memory in pieces of 256 MiB with a known content.
class Held {
  public:
    explicit Held(uint64_t mib) {
        for (; mib > 0; mib -= std::min<uint64_t>(mib, 256)) {
            Piece piece{0, std::min<uint64_t>(mib, 256) << 20};
            CHECK(cuMemAlloc(&piece.at, piece.bytes));
            CHECK(cuMemsetD32(piece.at, unsigned(pieces_.size()) + 1, piece.bytes / 4));
            pieces_.push_back(piece);
        }
        CHECK(cuCtxSynchronize());
    }
    // Words, of one every 256 KiB, that are not what was written.
    size_t wrong() const {
        size_t bad = 0;
        for (size_t i = 0; i < pieces_.size(); ++i)
            for (uint64_t at = 0; at < pieces_[i].bytes; at += 256 << 10) {
                unsigned word = 0;
                CHECK(cuMemcpyDtoH(&word, pieces_[i].at + at, 4));
                bad += word != i + 1;
            }
        return bad;
    }

  private:
    struct Piece {
        CUdeviceptr at;
        uint64_t bytes;
    };
    std::vector<Piece> pieces_;
};

int uuid() {
    CUdevice device;
    CUuuid id;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDeviceGetUuid(&id, device));
    std::printf("{\"uuid\": \"");
    for (char byte : id.bytes) std::printf("%02x", static_cast<unsigned char>(byte));
    std::printf("\"}\n");
    return 0;
}

int work(const Options& o) {
    Program p(o);
    Held held(o.memory_mib);
    if (o.graph) p.make_graph();
    std::vector<CUevent> events(size_t(o.depth));
    for (auto& e : events) CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    p.launch(1, o.scale);
    p.synchronize();
    std::vector<uint64_t> done;
    done.reserve(1u << 20);
    if (o.start) sleep_until(o.start);
    uint64_t begin = o.start ? o.start : now_ns(), end = begin + uint64_t(o.seconds * 1e9);
    uint64_t submitted = 0;
    while (now_ns() < end) {
        CUevent& event = events[submitted % events.size()];
        if (submitted >= events.size()) {
            CHECK(cuEventSynchronize(event));
            done.push_back(now_ns());
        }
        p.batch();
        CHECK(cuEventRecord(event, p.stream()));
        ++submitted;
        // Phases are counted in work, not in time: one that had to wait for the device is not shorter for it.
        const double phase_batches = o.phase * 1e6 / (o.kernel_us * o.batch);
        if (o.cpu > 0 && submitted % std::max<uint64_t>(1, uint64_t(phase_batches)) == 0) {
            CHECK(cuEventSynchronize(event));
            sleep_until(now_ns() + uint64_t(o.phase * 1e9 * o.cpu / (1 - o.cpu)));
        }
    }
    for (uint64_t i = done.size(); i < submitted; ++i) {
        CHECK(cuEventSynchronize(events[i % events.size()]));
        done.push_back(now_ns());
    }
    double batch_ns = o.kernel_us * 1000 * o.batch;
    if (!o.file.empty()) {
        FILE* f = std::fopen(o.file.c_str(), "w");
        if (!f) return 1;
        for (size_t i = 0; i < done.size(); ++i)
            std::fprintf(f, "%llu %.0f\n", static_cast<unsigned long long>(done[i] - begin),
                         batch_ns * double(i + 1));
        std::fclose(f);
    }
    size_t in_time = size_t(std::upper_bound(done.begin(), done.end(), end) - done.begin());
    std::printf("{\"work_s\": %.6f, \"seconds\": %.6f, \"batches\": %zu, \"wrong\": %zu}\n",
                batch_ns * double(in_time) / 1e9, o.seconds, in_time, held.wrong());
    return 0;
}

int latency(const Options& o) {
    Program p(o);
    std::mt19937_64 random(1);
    std::exponential_distribution<double> gap(o.rate);
    std::vector<double> waits;
    for (int i = 0; i < 20; ++i) {
        p.launch(o.kernel_us, o.scale);
        p.synchronize();
    }
    if (o.start) sleep_until(o.start);
    uint64_t begin = o.start ? o.start : now_ns(), end = begin + uint64_t(o.seconds * 1e9);
    double arrival = double(begin);
    for (;;) {
        arrival += gap(random) * 1e9;
        if (arrival >= double(end)) break;
        sleep_until(uint64_t(arrival));
        p.launch(o.kernel_us, o.scale);
        p.synchronize();
        waits.push_back((double(now_ns()) - arrival) / 1000);  // open loop: waiting for the one before counts
    }
    std::sort(waits.begin(), waits.end());
    auto at = [&](double q) { return waits.empty() ? 0.0 : waits[size_t(q * double(waits.size() - 1))]; };
    std::printf("{\"requests\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n", waits.size(), at(0.5),
                at(0.99), at(1));
    return 0;
}

int launches(const Options& o) {
    Program p(o);
    std::vector<double> rounds;
    for (int round = 0; round < 12; ++round) {
        uint64_t begin = now_ns();
        for (int i = 0; i < o.count; ++i) p.launch_empty();
        p.synchronize();
        if (round >= 2) rounds.push_back(double(now_ns() - begin) / o.count);
    }
    std::sort(rounds.begin(), rounds.end());
    std::printf("{\"ns_per_launch\": %.1f, \"best\": %.1f}\n", rounds[rounds.size() / 2], rounds[0]);
    return 0;
}

int allocations(const Options& o) {
    Program p(o);
    std::vector<CUdeviceptr> pointers(64);
    std::vector<double> rounds;
    int pairs = o.count;
    for (int round = 0; round < 12; ++round) {
        uint64_t begin = now_ns();
        for (int i = 0; i < pairs; ++i) {
            CHECK(cuMemAlloc(&pointers[0], 4096));  // from the driver's own slabs: cheap, so the difference shows
            CHECK(cuMemFree(pointers[0]));
        }
        if (round >= 2) rounds.push_back(double(now_ns() - begin) / pairs);
    }
    std::sort(rounds.begin(), rounds.end());
    std::printf("{\"ns_per_pair\": %.1f, \"best\": %.1f}\n", rounds[rounds.size() / 2], rounds[0]);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options o = parse(argc, argv);
    if (o.mode == "calibrate") return calibrate(o);
    if (o.mode == "uuid") return uuid();
    if (o.mode == "work") return work(o);
    if (o.mode == "latency") return latency(o);
    if (o.mode == "launch") return launches(o);
    if (o.mode == "alloc") return allocations(o);
    std::fprintf(stderr, "usage: client calibrate|work|latency|launch|alloc [options]\n");
    return 2;
}
