// Fingerprints of device memory, taken on the device: a kernel reads at the memory's own speed, some fifty times the
// link's, so finding out that a part has not changed costs a fiftieth of copying it again.
//
// No changed byte is ever left uncopied, for these reasons. Fingerprints are taken and compared only while the
// gate is closed and nothing of the process runs, so the bytes that were looked at are the bytes that would be
// copied. A fingerprint has 128 bits, two sums (modulo 2^64) over all words of 64 bits; a term is a bijection of
// its word, so a part of which a single word changed always has another one. If several changed, both sums would
// have to come out the same; the terms depend on the word's place and on keys that are drawn anew by each process,
// so that no pattern of a program's data can make it likelier than one in 2^128, which is less than what memory
// with error correction gets wrong by itself. The program's data is all that depends on it.
#pragma once

#include <array>
#include <span>

#include "hook/lookup/cuda_api.h"
#include "hook/swap/chunk.h"

namespace gemlet::hook {

class Fingerprinter {
  public:
    static constexpr uint64_t kPlaces = 8192;  // results under way: of 4 GiB

    // Loads the kernel into the current context. False if it cannot be loaded; everything is copied then.
    bool ready();
    // Starts on whole parts from `at`; results are in `places` from there once the stream has reached this point.
    bool start(CUdeviceptr at, uint64_t bytes, uint64_t place, CUstream stream) const;
    std::span<const Fingerprint> results(uint64_t place, uint64_t count) const {
        return {static_cast<const Fingerprint*>(results_) + place, count};
    }
    // The context goes away; `alive`: it still exists and is current.
    void unload(bool alive);

  private:
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    void* results_ = nullptr;         // pinned, and kept: the device writes to it
    CUdeviceptr device_results_ = 0;  // as the device sees it
    bool tried_ = false;
};

}  // namespace gemlet::hook
