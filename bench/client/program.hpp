// What every mode of the benchmarks' program needs: options, the device with the spin kernel on it, the clock, the
// log.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

void check(CUresult result, const char* what);  // ends the program with the error's name
#define CHECK(call) check(call, #call)

uint64_t now_ns();  // CLOCK_MONOTONIC
void sleep_until(uint64_t ns);

struct Options {
    std::string mode, shape = "large", stream = "own", file, how = "queued";
    double kernel_us = 100, seconds = 5, rate = 100, threshold_us = 1000;
    uint64_t scale = 0, seed = 1;
    uint64_t memory_mib = 0, rewrite_mib = 0;
    double cpu = 0, phase = 1, gap_us = 0, dead = 0;
    unsigned blocks = 0;  // of a kernel; 0: as many as the shape says
    int batch = 10, depth = 4, count = 100'000, marks = 1, kernels = 1, threads = 1;
    bool graph = false, wait = false;
};

// Without --wait: now. With it: says "ready" on stdout, reads the time to begin at (CLOCK_MONOTONIC, ns) from stdin
// and sleeps until then. So programs that take unlike times to start up begin at one instant.
uint64_t wait_for_start(const Options& o);

// One piece of work that is complete: when (ns since the start), all work so far (ns), and, where there was a time at
// which it was to begin, how long after that it was complete (ns).
struct Completed {
    uint64_t at;
    double work;
    double latency = -1;
};
void write_log(const std::string& path, const std::vector<Completed>& log);

class Program {
  public:
    explicit Program(const Options& o);

    CUresult try_launch(double us);
    void launch(double us);
    void launch_and_pause();  // one kernel, then --gap-us on the host: a program bound by its launches
    using Launch = decltype(&cuLaunchKernel);
    void launch_empty(Launch launch = cuLaunchKernel);
    void synchronize() { CHECK(cuStreamSynchronize(stream_)); }
    void make_graph();      // of one batch
    void batch(int marks);  // ... or the part of one between two marks

    CUcontext context() const { return context_; }
    CUstream stream() const { return stream_; }
    unsigned blocks() const { return grid_; }
    void scale(uint64_t value) { scale_ = value; }

  private:
    const Options& o_;
    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
    CUfunction spin_ = nullptr, empty_ = nullptr;
    CUdeviceptr out_ = 0;
    CUstream stream_ = nullptr;
    CUgraphExec graph_ = nullptr;
    uint64_t scale_;
    unsigned grid_ = 1, block_ = 1;
};

void* driver_symbol(const char* name);  // past whatever was preloaded; null if the driver has none of that name

int work(const Options& o);
int latency(const Options& o);
int burst(const Options& o);
int fill(const Options& o);
int heartbeat(const Options& o);
int carry(const Options& o);
int leave(const Options& o);
