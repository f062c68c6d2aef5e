// Movable memory that is allocated and freed in the order of a stream, in place of a pool's.
#pragma once

#include "hook/swap/space.h"

namespace gemlet::hook {

// With `mutex`: freed in some stream's order, and not given back yet.
bool is_freed(const SwapSpace& space, CUdeviceptr pointer);
// Gives freed blocks back, of `pool` (null: blocks without a pool) or of all, until at most `keep` bytes of them
// are left. Waits for the work that uses them, or leaves such blocks out. With `allocating`, without `mutex`.
// False if there was nothing to give back.
bool release_freed(SwapSpace& space, uint64_t keep, std::optional<CUmemoryPool> pool = std::nullopt,
                   bool wait = true);
// Gives back what was freed so, is of no pool, and is not in use any more. Nothing if a thread allocates just now.
void release_unpooled(SwapSpace& space);

}  // namespace gemlet::hook
