// The movable memory of this process on one device: chunks, the allocations in them, and which thread may touch
// which.
//
// Locks, outermost first: `allocating` (one allocation or free at a time), `asking`, `mutex` (all that follows it).
// The mover takes `mutex` for each step, never across a wait; a chunk it copies is `busy` meanwhile.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "futex.h"
#include "hook/memory/movable.h"
#include "hook/memory/stream_end.h"
#include "hook/submit/device.h"
#include "hook/submit/move_gate.h"
#include "hook/swap/arena.h"
#include "hook/swap/chunk.h"
#include "hook/swap/created.h"
#include "hook/swap/pieces.h"

namespace gemlet::hook {

inline constexpr uint64_t kChunk = 64 << 20;  // most of a chunk: what one eviction moves

// Reserved addresses, kept as long as anything is allocated there.
struct Reservation {
    CUdeviceptr start = 0;
    uint64_t bytes = 0;           // reserved: whole blocks
    uint64_t asked = 0;           // by the program; of slabs: unused
    CUcontext context = nullptr;  // null: it belongs to none, being the home of what cuMemCreate made
    CUmemoryPool pool = nullptr;  // it stands for memory of that pool
    uint64_t id = 0;
    bool sync_memops = false;
    std::vector<std::unique_ptr<Chunk>> chunks;
    std::unique_ptr<Pieces> pieces;  // of a slab: what is allocated in it
};

// Memory that was freed in the order of a stream, and may be used again in that order (swap/stream_ordered.cpp).
struct FreedBlock {
    CUdeviceptr start;
    uint64_t bytes;
    CUmemoryPool pool;
    CUcontext context;
    const Stream* stream;  // whose order
    uint64_t thread;       // whose own stream it is, as a later thread's looks the same; 0: nobody's own
    uint32_t generation;   // of the streams: a later one may have taken its place
    StreamEnd end;         // behind the free, in the context of the stream, which may be another
    bool over;             // there is nothing to ask any more
    uint64_t freed_at;
};

struct PoolBytes {
    uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};

// A change of what `lock` guards, which a thread awaits without it. Not a condition variable: waiting for one is a
// cancellation point (link/system_calls.h).
class Change {
  public:
    template <class Condition>
    void wait(std::unique_lock<std::mutex>& lock, Condition&& condition) {
        constexpr uint64_t kLookAgain = 100'000'000;
        while (!condition()) {
            const uint32_t seen = times_.load();
            lock.unlock();
            futex_wait(times_, seen, kLookAgain);
            lock.lock();
        }
    }
    void notify_all() {
        times_.fetch_add(1);
        futex_wake_all(times_);
    }

  private:
    std::atomic<uint32_t> times_{0};
};

struct SwapSpace {
    SwapSpace(Device& d, wire::ResidencyPage* p);

    Device& device;
    // The daemon's page, or `unmanaged`, which allows everything once it is known that no daemon follows (its `order`
    // is set). Pages of past daemons stay mapped.
    std::atomic<wire::ResidencyPage*> page;
    wire::ResidencyPage unmanaged{};
    MoveGate gate{this};
    bool moves = true;  // what is allocated; else all of it stays on the device, as arrays do

    std::mutex allocating;
    std::mutex asking;     // one question at a time
    uint32_t request = 0;  // number of the last

    std::mutex mutex;
    Change copied;  // some chunk is no longer busy
    std::map<CUdeviceptr, std::unique_ptr<Reservation>> reservations;
    std::map<CUmemGenericAllocationHandle, std::unique_ptr<Created>> created;  // by name
    std::map<CUdeviceptr, View> views;
    CUcontext seen = nullptr;                 // a context of the device in which a thread was here
    std::list<FreedBlock> freed;              // the oldest first
    std::map<CUmemoryPool, PoolBytes> pools;  // as the program would see them
    std::vector<Chunk*> chunks;  // in the order of their making: eviction takes from the end, so always the same
    Arena arena;
    uint64_t movable = 0;    // bytes of all chunks
    uint64_t announced = 0;  // about to be
    uint64_t hidden = 0;     // room for contexts, which the daemon accounts for by itself
    uint64_t mapped = 0;     // bytes of chunks on the device
    uint64_t limit = 0;      // bytes allowed there
    uint64_t moved_out = 0, moved_in = 0, dropped = 0;
    uint64_t ticket = 0;   // of the declaration that the chunks' `dead` are of; 0: there is none
    bool broken = false;   // the context is beyond help: the program shall see its errors
    bool stopped = false;  // since the gate was closed nothing runs any more; the mover's
    std::atomic<uint32_t> nudges{0};
    std::atomic<bool> asked{false};  // for the memory back, since the gate was closed

    // Iterations, if the program reports them (swap/declare.cpp).
    std::atomic<uint64_t> iteration_end{0}, iteration{0};  // when the last one ended, how long they take
    std::atomic<bool> end_wanted{false};                   // memory is to leave at the end of this one
    std::atomic<bool> ever_moved{false};
    std::atomic<uint64_t> opened_at{now_ns()};  // when programs last began to have it all

    bool managed() const { return page.load(std::memory_order_acquire) != &unmanaged; }
    bool all_resident() const;  // with `mutex`
    void adopt_order();         // with `mutex`: from now on no more than the daemon allows
    void publish();             // with `mutex`: for the daemon
    void tell(wire::MessageType type, uint64_t value = 0, uint32_t epoch = 0, uint32_t flags = 0);
    void wake_mover();
    void close_gate();  // nothing is evicted yet: threads inside may finish

    // Returns when the daemon answered.
    wire::Admission ask(wire::MessageType type, uint64_t value, uint32_t flags = 0);

    // For threads at the closed gate.
    void await_open();

    // What belongs to no context is copied in one in which the program works.
    void see_context();
};

SwapSpace* swap_space(CUdevice device);

// The driver behind chunks.
class DeviceMemory : public ChunkDriver {
  public:
    // `strict`: made as the program asked for it, or not at all. Else better than not at all is memory that cannot be
    // exported: it is to have a content that was in other such memory before.
    DeviceMemory(CUdevice device, const Chunk& chunk, bool strict)
        : device_(device), properties_(chunk.properties.get()), strict_(strict) {}
    CUresult create(uint64_t bytes, CUmemGenericAllocationHandle& handle) override;
    CUresult map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) override;
    CUresult allow(CUdeviceptr address, uint64_t bytes) override;
    CUresult map_view(const ChunkView& view, CUmemGenericAllocationHandle handle) override;
    CUresult allow_view(const ChunkView& view) override;
    CUresult unmap(CUdeviceptr address, uint64_t bytes) override;
    CUresult release(CUmemGenericAllocationHandle handle) override;

  private:
    CUdevice device_;
    const CUmemAllocationProp* properties_;
    bool strict_;
};

// A chunk's memory, with its accounting; with `mutex`.
CUresult bring(SwapSpace& space, Chunk& chunk, bool strict = false);
CUresult vacate(SwapSpace& space, Chunk& chunk);

// swap/stream_ordered.cpp, with `mutex`
void free_blocks_are_dead(SwapSpace& space);  // while nothing runs
void forget_freed(SwapSpace& space, CUcontext context);

// swap/declare.cpp
bool waits_for_iteration(SwapSpace& space);   // memory may leave at the end of an iteration, which is soon; waits
void confirm_declarations(SwapSpace& space);  // with `mutex`: nobody is inside the gate

// swap/mover.cpp
void start_mover(SwapSpace& space);
void retry_mover(SwapSpace& space);  // the system may allow a thread by now, if it did not
// For a thread of the program that waits at the closed gate: where the system allows no thread, it takes the mover's
// next step itself. Returns how long to wait for the gate.
uint64_t move_meanwhile(SwapSpace& space, uint64_t at_most_ns);
bool has_context(SwapSpace& space);                       // else nothing moves until the program makes one
void forget_movers();                                     // in a forked child, which has none of the threads
void forget_copies(SwapSpace& space, CUcontext context);  // before the context goes
void context_went(SwapSpace& space, CUcontext context);   // or stayed, after all

}  // namespace gemlet::hook
