// What the link between host and device carries, from pinned memory, in pieces as large as those memory is moved in.
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

}  // namespace

int carry(const Options& o) {
    const Program p(o);
    Link link(std::max<size_t>(1, (size_t(o.memory_mib) << 20) / kPiece));
    const double out = link.carry(true, false), in = link.carry(false, true), both = link.carry(true, true);
    std::printf("{\"out\": %.3f, \"in\": %.3f, \"both\": %.3f}\n", out, in, both);
    return 0;
}
