// Small allocations share physical blocks (slabs). The address of a pointer tells its slab, so a slab is charged
// with its first allocation and given back with its last, exactly.
#pragma once

#include "hook/memory/accounting.h"

namespace gemlet::hook {

// True if the slabs charged so far may have room: then an allocation is charged only if it opens a new slab after
// all.
bool slabs_have_room(CUdevice device, uint64_t bytes);

// While it lives, the calling thread is about to allocate in a slab, and may have charged one that it will not need.
class SlabRequest {
  public:
    explicit SlabRequest(CUdevice device);
    ~SlabRequest();
    SlabRequest(const SlabRequest&) = delete;
    SlabRequest& operator=(const SlabRequest&) = delete;
    uint64_t others() const;  // on the device now

  private:
    const CUdevice device_;
};

// Counts an allocation the driver made in its slab. True if the slab is charged already.
bool enter_slab(CUdeviceptr pointer, const Allocation& allocation);
// Makes the caller's charge that of the slab it has entered. False if another allocation's came first.
bool charge_slab(CUdeviceptr pointer);
bool is_charged_slab(CUdeviceptr pointer);
// Takes the allocation out of its slab; with the last one, gives back the slab's charge if it has one.
void leave_slab(CUdeviceptr pointer, const Allocation& allocation);

}  // namespace gemlet::hook
