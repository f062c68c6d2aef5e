// One chunk of movable memory: a piece of reserved address space, what is behind it on the device, and its place on
// the host. Pure: the driver is an interface, so every failure can be tried without one (tests/sim/hook/native).
//
//     away -- prepare --> prepared -- (copy in) arrived --> resident -- (copy out) copied --> clean
//     clean -- vacate --> away
//
// Every step looks at what is there and does what is missing, so a step that failed half-way is simply done again,
// and no failure needs to be undone. The content is in at least one place at every moment: it leaves the device only
// once the host has it, and the host's copy counts as stale only when programs may write again (`opened`).
//
// Not all of a chunk has to be copied. Left out are bytes that the program declared dead (swap/declare.h), and parts
// that are on the host already, as they are: their fingerprint (swap/fingerprint.h), taken while nothing runs, is the
// one they had when they were last copied. What is on the host at `slot` is written by copies only, so a part's bytes
// there have fingerprint `kept` for as long as it is known; it is forgotten before a copy begins to overwrite them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "hook/lookup/cuda_api.h"
#include "hook/swap/spans.h"

namespace gemlet::hook {

inline constexpr uint64_t kNoSlot = UINT64_MAX;
inline constexpr uint64_t kPart = 512 << 10;  // what one fingerprint is of; chunks are whole parts
inline constexpr uint64_t kGap = 64 << 10;    // one copy more costs as much as copying these bytes

// Of a part's bytes. Nulls: not known.
struct Fingerprint {
    uint64_t a = 0, b = 0;
    bool known() const { return a != 0 || b != 0; }
    bool operator==(const Fingerprint&) const = default;
};

// A part of a chunk at addresses of the program's, with the access that it asked for there (swap/created.h).
struct ChunkView {
    CUdeviceptr address;
    uint64_t offset, bytes;                      // of the chunk
    const std::vector<CUmemAccessDesc>* access;  // as it is when it is applied
    bool mapped = false;
    bool accessible = false;  // for whom it shall be
};

class ChunkDriver {
  public:
    virtual ~ChunkDriver() = default;
    virtual CUresult create(uint64_t bytes, CUmemGenericAllocationHandle& handle) = 0;
    virtual CUresult map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) = 0;
    virtual CUresult allow(CUdeviceptr address, uint64_t bytes) = 0;
    virtual CUresult map_view(const ChunkView& view, CUmemGenericAllocationHandle handle) = 0;
    virtual CUresult allow_view(const ChunkView& view) = 0;
    virtual CUresult unmap(CUdeviceptr address, uint64_t bytes) = 0;
    virtual CUresult release(CUmemGenericAllocationHandle handle) = 0;
};

struct Chunk {
    CUdeviceptr address = 0;
    uint64_t bytes = 0;
    std::shared_ptr<const CUmemAllocationProp> properties;  // of its physical memory; null: plain
    std::vector<ChunkView> views;                           // besides `address`, where it is copied

    bool has_handle = false;  // physical memory, which counts as on the device
    CUmemGenericAllocationHandle handle = 0;
    bool mapped = false;
    bool accessible = false;

    bool content = false;       // programs may have written to it; without, nothing is ever copied
    bool device_valid = false;  // the device has the content
    bool host_valid = false;    // the host has it, at `slot`
    uint64_t slot = kNoSlot;    // offset in the arena
    bool busy = false;          // a copy is under way
    bool leaving = false;       // it is being freed
    bool stays = false;         // on the device for good, and counted there as what cannot move

    Spans dead;                     // declared so, and the declaration holds
    Spans holes;                    // bytes of the host's copy that were dead when it was made
    std::vector<Fingerprint> kept;  // of the bytes at `slot`, a part each; empty: nothing is known
    std::vector<Fingerprint> now;   // of the bytes on the device while nothing runs; empty: not looked at
    std::vector<Span> to_copy;      // what the host lacks; once planned
    bool planned = false;
    bool record = false;        // its fingerprints are to be taken when it is copied
    uint64_t copied_bytes = 0;  // of it, since programs last ran
    uint32_t misses = 0;        // times in a row that comparing found nothing to save
    uint32_t pass = 0;          // evictions to go by without it

    uint64_t parts() const { return bytes / kPart; }
    bool resident() const { return accessible && (device_valid || !content) && is_in_view(); }
    bool is_in_view() const {
        return std::all_of(views.begin(), views.end(), [](const ChunkView& v) { return v.accessible; });
    }
    bool on_device() const { return has_handle; }
    bool needs_copy_in() const { return content && !device_valid; }
    bool needs_copy_out() const { return content && device_valid && !host_valid; }
    bool may_vacate() const { return !content || host_valid; }
    // What it costs to move out: nothing for what has no content, then nothing but unmapping, then a copy.
    int eviction_class() const { return !content ? 0 : host_valid || (planned && to_copy.empty()) ? 1 : 2; }

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
        for (ChunkView& view : views) {
            if (!view.mapped) {
                if (CUresult r = driver.map_view(view, handle)) return r;
                view.mapped = true;
            }
            if (!view.accessible) {
                if (CUresult r = driver.allow_view(view)) return r;
                view.accessible = true;
            }
        }
        return CUDA_SUCCESS;
    }
    std::vector<Span> to_copy_in() const {
        std::vector<Span> spans;
        for (const Span& span : holes.without(0, bytes)) append(spans, span, kGap);
        return spans;
    }
    void arrived() {
        device_valid = true;
        copied_bytes = 0;
    }

    // Whether its fingerprints are worth taking: not each time of what is changed each time.
    bool worth_comparing() {
        if (pass == 0) return true;
        --pass;
        return false;
    }
    bool comparable() const {
        return std::any_of(kept.begin(), kept.end(), [](const Fingerprint& f) { return f.known(); });
    }
    // Decides what the host lacks. While nothing runs; `dead` and `now` are as they will be.
    void plan() {
        to_copy.clear();
        uint64_t same = 0;
        for (uint64_t i = 0; i < parts(); ++i) {
            if (i < now.size() && i < kept.size() && now[i].known() && now[i] == kept[i]) {
                same += kPart;
                continue;
            }
            for (const Span& span : dead.without(i * kPart, (i + 1) * kPart)) append(to_copy, span, kGap);
        }
        if (comparable() && !now.empty()) {
            misses = same > 0 ? 0 : std::min(misses + 1, 4u);
            pass = (1u << misses) - 1;
        }
        planned = true;
    }
    // The copy begins to overwrite what is on the host.
    void copying() {
        for (const Span& span : to_copy)
            for (uint64_t i = span.begin / kPart; i * kPart < span.end && i < kept.size(); ++i) kept[i] = {};
    }
    // What was planned is on the host.
    void copied() {
        host_valid = true;
        holes = dead;
        copied_bytes += bytes_of(to_copy);
        kept.resize(parts());
        for (const Span& span : to_copy)
            for (uint64_t i = span.begin / kPart; i * kPart < span.end; ++i)
                // Of a part with dead bytes the host has a mixture.
                kept[i] = i < now.size() && !dead.touches(i * kPart, (i + 1) * kPart) ? now[i] : Fingerprint{};
    }

    // Gives the device's memory back. Only if may_vacate().
    CUresult vacate(ChunkDriver& driver) {
        for (ChunkView& view : views)
            if (CUresult r = hide(driver, view)) return r;
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
    static CUresult hide(ChunkDriver& driver, ChunkView& view) {
        if (view.mapped)
            if (CUresult r = driver.unmap(view.address, view.bytes)) return r;
        view.mapped = view.accessible = false;
        return CUDA_SUCCESS;
    }
    // Programs may read and write it from now on.
    void opened() {
        content = device_valid = true;
        host_valid = planned = false;
        copied_bytes = 0;
        dead.clear();
        now.clear();
        to_copy.clear();
    }
    // What is at `slot` is not needed: the device has what counts.
    bool may_leave_slot() const { return !busy && !host_valid && resident(); }
    // It has no place on the host any more. Only if may_leave_slot(); what was planned counted on what was there.
    void leave_slot() {
        slot = kNoSlot;
        kept.clear();
        holes = {};
        planned = false;
        to_copy.clear();
    }
    // Whatever is in it is not needed any more.
    void discard() { content = device_valid = host_valid = false; }
};

}  // namespace gemlet::hook
