// This process's accounting of device memory: what it charged to the group's ledger and on whose behalf. The hooks in
// memory/linear.cpp, memory/pool.cpp, memory/array.cpp and memory/virtual.cpp write here.
//
// Every hook follows one rule: it charges before it asks the driver, and gives the charge back if the driver
// refuses, or after a free succeeded. It takes an entry out before the free (afterwards another thread may get the
// same pointer) and puts it back if the free fails.
#pragma once

#include <cstdint>

#include "hook/lookup/cuda_api.h"
#include "hook/memory/ledger.h"
#include "hook/memory/pointer_map.h"

namespace gemlet::hook {

// --- charging (device memory in bytes) ---------------------------------------------------------------------------

// Gives back the room of contexts that the daemon accounts for by now.
void settle_contexts(CUdevice device);

// Room in the group's limit, after reading again what the driver may have given back by itself.
bool reserve(CUdevice device, uint64_t bytes, Wanted wanted = Wanted::kAllocation);

// The same, counted as held by this process. False: over the limit.
bool charge(CUdevice device, uint64_t bytes);
// The same for memory that can move, which requests its place on the device itself.
bool charge_movable(CUdevice device, uint64_t bytes);
void give_back(CUdevice device, uint64_t bytes);

// Whether there is room for what only the driver can size (code, a green context, a graph): for one block at least.
// The daemon accounts for what it really takes.
bool room_for_unknown(CUdevice device);

// Accounts for what the driver already took by itself (a pool or a graph that grew), past the limit if it must be.
void account(CUdevice device, uint64_t bytes);

// Bytes this process has reserved on the device for allocations it made (the daemon accounts for contexts).
uint64_t memory_held(CUdevice device);

// Pools and graph memory may shrink without a call of ours. Their size is read from the driver again.
void refresh_elastic(CUdevice device);
void has_elastic(CUdevice device);  // from now on refresh_elastic(device) has something to do

// --- allocations ---------------------------------------------------------------------------------------------------

struct Pool;

struct Allocation {
    enum class Kind : uint8_t { kOwnBlocks, kSlab, kPooled, kOfGraph };
    uint64_t bytes;  // charged for it; of kSlab and kPooled: its share of what is charged as a whole; of kOfGraph: 0
    CUcontext context;  // it dies with this one
    Pool* pool;         // of kPooled
    CUdevice device;
    Kind kind;
};

PointerMap<Allocation>& allocations();  // by device pointer
PointerMap<Allocation>& arrays();       // by CUarray and CUmipmappedArray

// Puts it into the map. What was still known of the pointer was freed behind our back, e.g. by a free captured into a
// graph.
void remember(CUdeviceptr pointer, const Allocation& allocation);

// For an allocation that was taken out of the map and has now been freed.
void settle_freed(CUdeviceptr pointer, const Allocation& allocation);

// The same for one whose free is in the order of a stream (memory/freed_later.cpp).
void settle_freed_later(CUdeviceptr pointer, const Allocation& allocation, CUstream stream);
void refresh_freed_later();

// A free is not complete yet: refresh_freed_later() and refresh_destroyed_pools() are called again and again, until
// neither asks for it any more (memory/awaited_frees.cpp).
void await_frees();

// Frees by `call` what the map may know. It leaves the map first: once the driver has freed it, another thread may
// get the same pointer.
template <class Call, class Settle = decltype(&settle_freed)>
CUresult free_remembered(CUdeviceptr pointer, Call&& call, Settle&& settle = &settle_freed) {
    auto allocation = allocations().take(pointer);
    const CUresult result = call();
    if (!allocation) return result;
    if (result == CUDA_SUCCESS)
        settle(pointer, *allocation);
    else
        allocations().put(pointer, *allocation);
    return result;
}

// Gives back everything that belonged to a destroyed context.
void forget_context(CUcontext context);
// What the streams of a destroyed green context were still to do is done. Memory does not go with them.
void forget_streams_of(CUcontext green);

// --- parts of the whole, by file -----------------------------------------------------------------------------------

void refresh_pools(CUdevice device);                         // memory/pool.cpp
void refresh_graph_memory(CUdevice device);                  // memory/graph.cpp
void refresh_destroyed_pools();                              // memory/pool.cpp
void pooled_freed(Pool* pool, uint64_t bytes);               // memory/pool.cpp
void graph_memory_freed(CUdevice device, CUdeviceptr left);  // memory/graph.cpp

// A forked child owns none of its parent's memory.
void forget_slabs();
void forget_pools();
void forget_graph_memory();
void forget_virtual_memory();
void forget_imported();
void forget_limits();
void forget_freed_later();
void forget_awaited_frees();
void forget_imported(CUcontext context);            // memory/imported.cpp: what belonged to a destroyed context
void forget_graph_memory(CUcontext context);        // memory/graph.cpp: likewise
void streams_of_frees_are_gone(CUcontext context);  // memory/freed_later.cpp: what their streams were to do is done
void graph_streams_are_gone(CUcontext context);     // memory/graph.cpp
void forget_limits(CUcontext context);              // memory/context_limits.cpp: likewise
void forget_freed_later(CUcontext context);         // memory/freed_later.cpp: likewise

// Sparse arrays hold on to what is mapped into them until they are destroyed (memory/virtual.cpp).
void array_destroyed(uint64_t array);

}  // namespace gemlet::hook
