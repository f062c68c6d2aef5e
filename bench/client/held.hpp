// Device memory that a client holds while it works, with a known content: written once, or anew all the time, or
// partly of no use between batches.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.hpp"

class Held {
  public:
    Held(uint64_t mib, uint64_t rewrite_mib, double dead) : dead_(dead) {
        const uint64_t slice = rewrite_mib ? rewrite_mib : 256;
        for (; mib > 0; mib -= std::min<uint64_t>(mib, 256)) {
            const uint64_t bytes = std::min<uint64_t>(mib, 256) << 20;
            CUdeviceptr at = 0;
            CHECK(cuMemAlloc(&at, bytes));
            pieces_.push_back({at, bytes});
            for (uint64_t offset = 0; offset < bytes; offset += slice << 20) {
                const Slice made{at + offset, std::min(slice << 20, bytes - offset), unsigned(slices_.size()) + 1};
                CHECK(cuMemsetD32(made.at, made.value, made.bytes / 4));
                slices_.push_back(made);
            }
        }
        if (!pieces_.empty()) CHECK(cuCtxSynchronize());
        // Of gemlet's preloaded library (native/hook/swap/declare.h), if it is there.
        iteration_ends_ = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "gemlet_iteration_ends"));
        dead_begin_ = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "gemlet_dead_begin"));
        declare_dead_ = reinterpret_cast<Declare>(dlsym(RTLD_DEFAULT, "gemlet_declare_dead"));
    }

    // The next slice has other bytes from now on.
    void rewrite(CUstream stream) {
        if (slices_.empty()) return;
        Slice& slice = slices_[next_++ % slices_.size()];
        slice.value += unsigned(slices_.size());
        CHECK(cuMemsetD32Async(slice.at, slice.value, slice.bytes / 4, stream));
    }

    void rewrite_all(CUstream stream) {
        for (size_t i = 0; i < slices_.size(); ++i) rewrite(stream);
    }

    // An iteration is over: of each allocation the first part is of no use any more.
    void end_of_iteration() const {
        if (dead_ <= 0 || !iteration_ends_ || !dead_begin_ || !declare_dead_ || iteration_ends_() == 0) return;
        const uint64_t ticket = dead_begin_();
        for (const Piece& piece : pieces_) {
            const uint64_t bytes = dead_bytes(piece);
            declare_dead_(ticket, &piece.at, &bytes, 1);
        }
    }

    // Counts words, one every 256 KiB, that differ from what was written; leaves out those that may have any
    // value.
    size_t wrong() const {
        CHECK(cuCtxSynchronize());  // a write may have been the last thing
        size_t bad = 0;
        for (const Slice& slice : slices_)
            for (uint64_t at = slice.at; at < slice.at + slice.bytes; at += 256 << 10) {
                unsigned word = 0;
                if (is_dead(at)) continue;
                CHECK(cuMemcpyDtoH(&word, at, 4));
                bad += word != slice.value;
            }
        return bad;
    }

  private:
    using Declare = int64_t (*)(uint64_t, const CUdeviceptr*, const uint64_t*, uint64_t);
    struct Piece {
        CUdeviceptr at;
        uint64_t bytes;
    };
    struct Slice {
        CUdeviceptr at;
        uint64_t bytes;
        unsigned value;
    };
    uint64_t dead_bytes(const Piece& piece) const { return uint64_t(double(piece.bytes) * dead_); }
    bool is_dead(CUdeviceptr at) const {
        return std::any_of(pieces_.begin(), pieces_.end(),
                           [&](const Piece& p) { return at >= p.at && at - p.at < dead_bytes(p); });
    }

    double dead_;
    std::vector<Piece> pieces_;
    std::vector<Slice> slices_;
    size_t next_ = 0;
    int (*iteration_ends_)() = nullptr;
    uint64_t (*dead_begin_)() = nullptr;
    Declare declare_dead_ = nullptr;
};
