// Movable memory that is allocated and freed in the order of a stream, in place of a pool's.
#pragma once

#include "swap_space.h"

namespace gemlet::hook {

// With `mutex`: freed in some stream's order, and not given back yet.
bool is_freed(const SwapSpace& space, CUdeviceptr pointer);
// Waits for what uses freed blocks, of `pool` or of all, and gives them back until at most `keep` bytes are left of
// them. With `allocating`, without `mutex`. False: there was nothing to give back.
bool release_freed(SwapSpace& space, uint64_t keep, CUmemoryPool pool = nullptr);

}  // namespace gemlet::hook
