// What the link between host and device carries, from pinned memory, in pieces as large as those memory is moved in;
// and what it takes to pin memory.
#include <sys/mman.h>
#include <algorithm>
#include <cstdio>

#include "program.hpp"

namespace {

constexpr size_t kPiece = size_t{64} << 20;
constexpr int kRounds = 3;  // of each way; the best counts, because what disturbs a round only ever slows it down

class Link {
  public:
    explicit Link(size_t pieces) : bytes_(pieces * kPiece) {
        CHECK(cuMemHostAlloc(&host_out_, bytes_, 0));
        CHECK(cuMemHostAlloc(&host_in_, bytes_, 0));
        CHECK(cuMemAlloc(&from_, bytes_));
        CHECK(cuMemAlloc(&to_, bytes_));
        CHECK(cuStreamCreate(&out_, CU_STREAM_NON_BLOCKING));
        CHECK(cuStreamCreate(&in_, CU_STREAM_NON_BLOCKING));
        carry(true, true);  // pages, clocks
    }

    // GB/s, both ways together if it is both.
    double carry(bool out, bool in) {
        double best = 0;
        for (int round = 0; round < kRounds; ++round) {
            const uint64_t begin = now_ns();
            for (size_t at = 0; at < bytes_; at += kPiece) {
                if (out) CHECK(cuMemcpyDtoHAsync(static_cast<char*>(host_out_) + at, from_ + at, kPiece, out_));
                if (in) CHECK(cuMemcpyHtoDAsync(to_ + at, static_cast<char*>(host_in_) + at, kPiece, in_));
            }
            CHECK(cuStreamSynchronize(out_));
            CHECK(cuStreamSynchronize(in_));
            const double rate = double(bytes_) * (out + in) / double(now_ns() - begin);
            if (rate > best) best = rate;
        }
        return best;
    }

  private:
    const size_t bytes_;
    void *host_out_ = nullptr, *host_in_ = nullptr;
    CUdeviceptr from_ = 0, to_ = 0;
    CUstream out_ = nullptr, in_ = nullptr;
};

struct Pinning {
    double touch_ms, pin_ms;  // per GiB
};

// Of memory such as what is moved lies in (native/hook/swap/arena.h).
Pinning pinning() {
    constexpr size_t kBytes = 8 * kPiece;
    constexpr double kPerGib = double(1 << 30) / double(kBytes) / 1e6;
    void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
    madvise(mapped, kBytes, MADV_HUGEPAGE);
    const uint64_t begin = now_ns();
    for (size_t at = 0; at < kBytes; at += 4096) static_cast<volatile char*>(mapped)[at] = 1;
    const uint64_t touched = now_ns();
    for (size_t at = 0; at < kBytes; at += kPiece)
        CHECK(cuMemHostRegister(static_cast<char*>(mapped) + at, kPiece, CU_MEMHOSTREGISTER_PORTABLE));
    const uint64_t pinned = now_ns();
    for (size_t at = 0; at < kBytes; at += kPiece) CHECK(cuMemHostUnregister(static_cast<char*>(mapped) + at));
    munmap(mapped, kBytes);
    return {double(touched - begin) * kPerGib, double(pinned - touched) * kPerGib};
}

}  // namespace

int carry(const Options& o) {
    const Program p(o);
    Link link(std::max<size_t>(1, (size_t(o.memory_mib) << 20) / kPiece));
    const double out = link.carry(true, false), in = link.carry(false, true), both = link.carry(true, true);
    const Pinning host = pinning();
    std::printf("{\"out\": %.3f, \"in\": %.3f, \"both\": %.3f, \"touch\": %.3f, \"pin\": %.3f}\n", out, in, both,
                host.touch_ms, host.pin_ms);
    return 0;
}
