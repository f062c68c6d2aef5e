// Device memory that a client holds while it works, with a known content.
#pragma once

#include <algorithm>
#include <vector>

#include "program.hpp"

class Held {
  public:
    explicit Held(uint64_t mib) {
        for (; mib > 0; mib -= std::min<uint64_t>(mib, 256)) {
            Piece piece{0, std::min<uint64_t>(mib, 256) << 20};
            CHECK(cuMemAlloc(&piece.at, piece.bytes));
            pieces_.push_back(piece);
        }
        write(nullptr);
        if (!pieces_.empty()) CHECK(cuCtxSynchronize());
    }
    // All of it anew, with another content than before.
    void write(CUstream stream) {
        ++generation_;
        for (size_t i = 0; i < pieces_.size(); ++i)
            CHECK(cuMemsetD32Async(pieces_[i].at, content(i), pieces_[i].bytes / 4, stream));
    }
    // Words, of one every 256 KiB, that are not what was written.
    size_t wrong() const {
        CHECK(cuCtxSynchronize());  // write() may have been the last thing
        size_t bad = 0;
        for (size_t i = 0; i < pieces_.size(); ++i)
            for (uint64_t at = 0; at < pieces_[i].bytes; at += 256 << 10) {
                unsigned word = 0;
                CHECK(cuMemcpyDtoH(&word, pieces_[i].at + at, 4));
                bad += word != content(i);
            }
        return bad;
    }

  private:
    struct Piece {
        CUdeviceptr at;
        uint64_t bytes;
    };
    unsigned content(size_t piece) const { return (generation_ << 16) + unsigned(piece) + 1; }

    unsigned generation_ = 0;
    std::vector<Piece> pieces_;
};
