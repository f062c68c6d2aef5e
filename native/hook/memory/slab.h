// Small allocations share physical blocks (slabs). Which one the driver put a pointer in is in the address, so a slab
// is charged with its first allocation and given back with its last, exactly.
#pragma once

#include "hook/memory/accounting.h"

namespace gemlet::hook {

// True if the slabs charged so far may have room: then an allocation is charged only if it opens a new slab after
// all.
bool slabs_have_room(CUdevice device, uint64_t bytes);

// Accounting an allocation the driver made. True if it is the first in its slab.
bool enter_slab(CUdeviceptr pointer, const Allocation& allocation);
// Accounting its end; gives the slab back if it was the last.
void leave_slab(CUdeviceptr pointer, const Allocation& allocation);
// The same, for an allocation whose slab was never charged. True if it was the last.
bool leave_slab_uncharged(CUdeviceptr pointer, const Allocation& allocation);

}  // namespace gemlet::hook
