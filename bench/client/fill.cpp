// A client that takes device memory a piece at a time until it is refused, gives all of it back and begins again. It
// writes to none of it, so it says what may be held, on any machine.
#include <algorithm>
#include <cstdio>

#include "program.hpp"

namespace {

constexpr double kPause = 0.1;  // seconds that what was taken is held before it is given back

}  // namespace

int fill(const Options& o) {
    Program p(o);
    const uint64_t piece = o.memory_mib << 20;
    if (piece == 0) {
        std::fprintf(stderr, "client: fill needs --memory-mib\n");
        return 2;
    }
    size_t free_bytes = 0, seen = 0;
    CHECK(cuMemGetInfo(&free_bytes, &seen));
    std::vector<CUdeviceptr> held;
    std::vector<Completed> log;
    double least = -1, most = 0;  // bytes held when the next piece was refused
    size_t refused = 0;
    const uint64_t begin = wait_for_start(o), end = begin + uint64_t(o.seconds * 1e9);
    const auto note = [&] { log.push_back({now_ns() - begin, double(held.size()) * double(piece)}); };
    note();
    for (uint64_t due = begin; now_ns() < end;) {
        due += uint64_t(1e9 / o.rate);
        sleep_until(std::min(due, end));
        CUdeviceptr at = 0;
        const CUresult result = cuMemAlloc(&at, piece);
        if (result == CUDA_SUCCESS) {
            held.push_back(at);
            note();
            continue;
        }
        if (result != CUDA_ERROR_OUT_OF_MEMORY) CHECK(result);
        const double bytes = double(held.size()) * double(piece);
        least = refused++ ? std::min(least, bytes) : bytes;
        most = std::max(most, bytes);
        due = now_ns() + uint64_t(kPause * 1e9);
        sleep_until(std::min(due, end));
        for (const CUdeviceptr pointer : held) CHECK(cuMemFree(pointer));
        held.clear();
        note();
    }
    for (const CUdeviceptr pointer : held) CHECK(cuMemFree(pointer));
    write_log(o.file, log);
    std::printf(
        "{\"refused\": %zu, \"least_bytes\": %.0f, \"most_bytes\": %.0f, \"seen_bytes\": %zu, \"free_bytes\": "
        "%zu}\n",
        refused, least, most, seen, free_bytes);
    return 0;
}
