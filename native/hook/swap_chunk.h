// One chunk of movable memory: a piece of reserved address space, what is behind it on the device, and its place on
// the host. Pure: the driver is an interface, so every failure can be tried without one (tests/sim/hook/native).
//
//     away -- prepare --> prepared -- (copy in) arrived --> resident -- (copy out) copied --> clean -- vacate -->
//     away
//
// Every step looks at what is there and does what is missing, so a step that failed half-way is simply done again,
// and no failure needs to be undone. The content is in at least one place at every moment: it leaves the device only
// once the host has it, and the host's copy counts as stale only when programs may write again (`opened`).
#pragma once

#include <cstdint>

#include "cuda_api.h"

namespace gemlet::hook {

inline constexpr uint64_t kNoSlot = UINT64_MAX;

class ChunkDriver {
  public:
    virtual ~ChunkDriver() = default;
    virtual CUresult create(uint64_t bytes, CUmemGenericAllocationHandle& handle) = 0;
    virtual CUresult map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) = 0;
    virtual CUresult allow(CUdeviceptr address, uint64_t bytes) = 0;
    virtual CUresult unmap(CUdeviceptr address, uint64_t bytes) = 0;
    virtual CUresult release(CUmemGenericAllocationHandle handle) = 0;
};

struct Chunk {
    CUdeviceptr address = 0;
    uint64_t bytes = 0;

    bool has_handle = false;  // physical memory, which counts as on the device
    CUmemGenericAllocationHandle handle = 0;
    bool mapped = false;
    bool accessible = false;

    bool content = false;       // programs may have written to it; without, nothing is ever copied
    bool device_valid = false;  // the device has the content
    bool host_valid = false;    // the host has it, at `slot`
    uint64_t slot = kNoSlot;    // offset in the arena; kept while the chunk lives
    bool busy = false;          // a copy is under way
    bool leaving = false;       // it is being freed

    bool resident() const { return accessible && (device_valid || !content); }
    bool on_device() const { return has_handle; }
    bool needs_copy_in() const { return content && !device_valid; }
    bool needs_copy_out() const { return content && device_valid && !host_valid; }
    bool may_vacate() const { return !content || host_valid; }
    // What it costs to move out: nothing for what has no content, then nothing but unmapping, then a copy.
    int eviction_class() const { return !content ? 0 : host_valid ? 1 : 2; }

    // Memory behind the addresses, without content yet.
    CUresult prepare(ChunkDriver& driver) {
        if (!has_handle) {
            if (CUresult r = driver.create(bytes, handle)) return r;
            has_handle = true;
        }
        if (!mapped) {
            if (CUresult r = driver.map(address, bytes, handle)) return r;
            mapped = true;
        }
        if (!accessible) {
            if (CUresult r = driver.allow(address, bytes)) return r;
            accessible = true;
        }
        return CUDA_SUCCESS;
    }
    void arrived() { device_valid = true; }
    void copied() { host_valid = true; }

    // Gives the device's memory back. Only if may_vacate().
    CUresult vacate(ChunkDriver& driver) {
        if (mapped) {
            if (CUresult r = driver.unmap(address, bytes)) return r;
            mapped = accessible = device_valid = false;
        }
        if (has_handle) {
            if (CUresult r = driver.release(handle)) return r;
            has_handle = false;
        }
        return CUDA_SUCCESS;
    }
    // Programs may read and write it from now on.
    void opened() {
        content = device_valid = true;
        host_valid = false;
    }
    // Whatever is in it is not needed any more.
    void discard() { content = device_valid = host_valid = false; }
};

}  // namespace gemlet::hook
