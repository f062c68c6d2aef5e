// The benchmarks' CUDA program: plain driver API, knows nothing of gemlet. Prints one line of JSON.
//
// clang-format off
//   client calibrate --kernel-us U [--shape large|full|small]
//   client work      --kernel-us U --scale S [--batch K] [--depth D] [--marks M] [--graph]
//                    [--stream default|own|thread]  batches of K kernels back to back, D of them queued; M entries of
//                                                   the log each
//                    [--memory-mib M]               held meanwhile, written once, looked at in the end
//                    [--rewrite-mib N]              N MiB of it are written anew behind each batch
//                    [--dead F]                     F of it is declared dead behind each batch, where gemlet is
//                    [--cpu F] [--phase S]          after S seconds of work does without the device, F of all time
//                    [--gap-us G]                   the host pauses after each launch
//   client latency   --kernel-us U --scale S --rate HZ [--seed N] [--kernels K] [--gap-us G]
//                                                   Poisson requests of K kernels each (1)
//   client burst     --kernel-us U --scale S --rate HZ [--batch K]
//                                                   a batch each 1/HZ seconds, not waiting for the last;
//                                                   [--memory-mib M] as of work, [--rewrite-mib N]: all behind each
//   client fill      --memory-mib M [--rate HZ]     takes M MiB each 1/HZ seconds until it is refused, gives all back,
//                                                   begins again
//   client launch    [--count N]                    empty kernels: ns per launch, queue kept short
//   client compare   [--count N]                    empty kernels: ns per launch of the driver's own function, and
//                                                   what the one before it adds
//   client alloc     [--count N]                    cuMemAlloc + cuMemFree of 4 KiB, ns per pair
//   client link      --memory-mib M                 GB/s between pinned memory and the device; ms per GiB to pin it
//   client leave     --kernel-us U --scale S [--threads T] [--how queued|busy|waiting|thread|order]
//                                                   T threads launch for --seconds, then the program exits without a
//                                                   wait: queued: after the last launch; busy: while they launch;
//                                                   waiting: while a thread waits; thread: by a thread's exit(); order: says what the
//                                                   driver answers in each of the handlers that run at exit
//   client heartbeat [--rate HZ] [--threshold-us U] how late a thread on each CPU wakes up; no GPU
//   client uuid                                     of device 0, in hexadecimal
// clang-format on
//
// calibrate says what to give as --scale and --blocks (the latter when a program may see fewer multiprocessors).
// work, latency, burst, fill, leave and heartbeat take [--seconds T] [--wait] [--file PATH]. With --wait they say
// "ready" and read from stdin when to begin. A line of PATH: ns since then, ns of work completed so far, ns since it
// was to begin (latency, burst); of fill: ns since then, bytes held; of heartbeat: ns since the start, ns late, CPU.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "program.hpp"

namespace {

Options parse(int argc, char** argv) {
    Options o;
    if (argc > 1) o.mode = argv[1];
    for (int i = 2; i < argc; ++i) {
        const std::string key = argv[i];
        if (key == "--graph" || key == "--wait") {
            (key == "--graph" ? o.graph : o.wait) = true;
            continue;
        }
        const char* value = i + 1 < argc ? argv[++i] : nullptr;
        if (!value) {
            std::fprintf(stderr, "client: %s needs a value\n", key.c_str());
            std::exit(2);
        }
        if (key == "--kernel-us")
            o.kernel_us = std::atof(value);
        else if (key == "--seconds")
            o.seconds = std::atof(value);
        else if (key == "--memory-mib")
            o.memory_mib = std::strtoull(value, nullptr, 10);
        else if (key == "--rewrite-mib")
            o.rewrite_mib = std::strtoull(value, nullptr, 10);
        else if (key == "--dead")
            o.dead = std::atof(value);
        else if (key == "--cpu")
            o.cpu = std::atof(value);
        else if (key == "--gap-us")
            o.gap_us = std::atof(value);
        else if (key == "--kernels")
            o.kernels = std::atoi(value);
        else if (key == "--phase")
            o.phase = std::atof(value);
        else if (key == "--rate")
            o.rate = std::atof(value);
        else if (key == "--threshold-us")
            o.threshold_us = std::atof(value);
        else if (key == "--scale")
            o.scale = std::strtoull(value, nullptr, 10);
        else if (key == "--blocks")
            o.blocks = unsigned(std::atoi(value));
        else if (key == "--seed")
            o.seed = std::strtoull(value, nullptr, 10);
        else if (key == "--batch")
            o.batch = std::atoi(value);
        else if (key == "--marks")
            o.marks = std::atoi(value);
        else if (key == "--depth")
            o.depth = std::atoi(value);
        else if (key == "--count")
            o.count = std::atoi(value);
        else if (key == "--threads")
            o.threads = std::atoi(value);
        else if (key == "--how")
            o.how = value;
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

// Device time of one kernel that runs n iterations = (n << 16) / scale ns, from a long queue of them.
double measure_us(Program& p, double us, int count) {
    CUevent begin, end;
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(begin, p.stream()));
    for (int i = 0; i < count; ++i) p.launch(us);
    CHECK(cuEventRecord(end, p.stream()));
    CHECK(cuEventSynchronize(end));
    float ms = 0;
    CHECK(cuEventElapsedTime(&ms, begin, end));
    return ms * 1000 / count;
}

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

int calibrate(const Options& o) {
    Program p(o);
    uint64_t scale = 65536 / 4;
    p.scale(scale);
    measure_us(p, o.kernel_us, 50);  // warm: modules, clocks
    for (int round = 0; round < 6; ++round) {
        const double got = measure_us(p, o.kernel_us, std::max(20, int(100'000 / o.kernel_us)));
        scale = std::max<uint64_t>(1, uint64_t(double(scale) * o.kernel_us / got));
        p.scale(scale);
    }
    std::printf("{\"scale\": %llu, \"blocks\": %u}\n", static_cast<unsigned long long>(scale), p.blocks());
    return 0;
}

// Twelve rounds; the first two warm up.
template <typename Round>
int timed(const char* name, int count, Round round) {
    std::vector<double> rounds;
    for (int i = 0; i < 12; ++i) {
        const uint64_t begin = now_ns();
        round();
        if (i >= 2) rounds.push_back(double(now_ns() - begin) / count);
    }
    std::sort(rounds.begin(), rounds.end());
    std::printf("{\"%s\": %.1f, \"best\": %.1f}\n", name, rounds[rounds.size() / 2], rounds[0]);
    return 0;
}

int launches(const Options& o) {
    Program p(o);
    return timed("ns_per_launch", o.count, [&] {
        for (int i = 0; i < o.count; ++i) p.launch_empty();
        p.synchronize();
    });
}

// The driver's own function and what stands before it, some hundred launches of one, then of the other. Of all the
// pairs of such blocks the median difference counts: what disturbs one block disturbs few.
int compare(const Options& o) {
    constexpr int kBlock = 200;
    Program p(o);
    const auto direct = reinterpret_cast<Program::Launch>(driver_symbol("cuLaunchKernel"));
    if (!direct) {
        std::fprintf(stderr, "client: the driver's cuLaunchKernel was not found\n");
        return 2;
    }
    std::vector<double> native, added;
    const auto block = [&](Program::Launch launch) {
        const uint64_t begin = now_ns();
        for (int i = 0; i < kBlock; ++i) p.launch_empty(launch);
        const double ns = double(now_ns() - begin) / kBlock;
        p.synchronize();
        return ns;
    };
    for (int i = 0; i < o.count / kBlock; ++i) {
        // The program that goes first takes turns, too.
        const bool first = i % 2 == 0;
        const double a = block(first ? direct : cuLaunchKernel), b = block(first ? cuLaunchKernel : direct);
        native.push_back(first ? a : b);
        added.push_back(first ? b - a : a - b);
    }
    const auto median = [](std::vector<double>& values) {
        std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
        return values[values.size() / 2];
    };
    std::printf("{\"native\": %.1f, \"added\": %.1f}\n", median(native), median(added));
    return 0;
}

int allocations(const Options& o) {
    Program p(o);
    return timed("ns_per_pair", o.count, [&] {
        for (int i = 0; i < o.count; ++i) {
            CUdeviceptr pointer;
            CHECK(cuMemAlloc(&pointer, 4096));  // from the driver's own slabs: cheap, so the difference shows
            CHECK(cuMemFree(pointer));
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    const Options o = parse(argc, argv);
    if (o.mode == "uuid") return uuid();
    if (o.mode == "calibrate") return calibrate(o);
    if (o.mode == "work") return work(o);
    if (o.mode == "latency") return latency(o);
    if (o.mode == "burst") return burst(o);
    if (o.mode == "fill") return fill(o);
    if (o.mode == "launch") return launches(o);
    if (o.mode == "compare") return compare(o);
    if (o.mode == "alloc") return allocations(o);
    if (o.mode == "heartbeat") return heartbeat(o);
    if (o.mode == "link") return carry(o);
    if (o.mode == "leave") return leave(o);
    std::fprintf(stderr, "usage: client calibrate|work|latency|burst|launch|alloc|heartbeat|link|leave [options]\n");
    return 2;
}
