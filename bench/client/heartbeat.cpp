// Distinguishes a machine that stood still from a GPU that did: a thread on each CPU wakes up at fixed times and
// records how late it was. Uses no GPU.
#include <pthread.h>
#include <sched.h>

#include <cinttypes>
#include <cstdio>
#include <thread>

#include "program.hpp"

namespace {

struct Late {
    uint64_t at, by;
    int cpu;
};

std::vector<Late> beat(const Options& o, int cpu, uint64_t begin) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    pthread_setaffinity_np(pthread_self(), sizeof only, &only);
    std::vector<Late> late;
    const uint64_t end = begin + uint64_t(o.seconds * 1e9);
    for (uint64_t due = begin; due < end;) {
        due += uint64_t(1e9 / o.rate);
        sleep_until(due);
        const uint64_t now = now_ns();
        if (double(now - due) > o.threshold_us * 1000) late.push_back({due - begin, now - due, cpu});
        while (due + uint64_t(1e9 / o.rate) < now) due += uint64_t(1e9 / o.rate);
    }
    return late;
}

}  // namespace

int heartbeat(const Options& o) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    const uint64_t begin = wait_for_start(o);
    std::vector<std::vector<Late>> found(CPU_SETSIZE);
    std::vector<std::thread> threads;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &allowed)) threads.emplace_back([&, cpu] { found[size_t(cpu)] = beat(o, cpu, begin); });
    for (auto& t : threads) t.join();
    FILE* f = o.file.empty() ? nullptr : std::fopen(o.file.c_str(), "w");
    size_t count = 0;
    for (const auto& of_cpu : found)
        for (const Late& l : of_cpu) {
            ++count;
            if (f) std::fprintf(f, "%" PRIu64 " %" PRIu64 " %d\n", l.at, l.by, l.cpu);
        }
    if (f && std::fclose(f) != 0) return 1;
    std::printf("{\"late\": %zu, \"cpus\": %zu}\n", count, threads.size());
    return 0;
}
