#include "allocations.hpp"

#include <sys/mman.h>

#include "addresses.hpp"
#include "contexts.hpp"
#include "visible_devices.hpp"

namespace gemlet::sim {

// One heap per device and process: contexts of one process share slabs' addresses but never a device's memory.
Heap& device_heap(Device& device) {
    constexpr uint64_t kBig = 1u << 20;  // up to here, allocations share a granule
    static auto* heaps = [] {
        auto* made = new std::vector<std::unique_ptr<Heap>>;
        for (const auto& d : devices())
            made->push_back(std::make_unique<Heap>(*d, d->profile().granularity, kBig + 1, false));
        return made;
    }();
    return *(*heaps)[device.index()];
}

CUdeviceptr allocate_device(CUcontext context, uint64_t bytes) {
    check(bytes > 0);
    const Heap::Piece piece = device_heap(*context->device).take(bytes);
    check(piece.address != 0, CUDA_ERROR_OUT_OF_MEMORY);
    Range range;
    range.base = piece.address;
    range.bytes = bytes;
    range.place = Place::kDevice;
    range.device = static_cast<int>(context->device->index());
    range.context = owner_of(context);
    range.backing = piece.backing;
    range.backing_offset = piece.backing_offset;
    Addresses::get().add(std::move(range));
    return piece.address;
}

void free_device(CUdeviceptr address) {
    const auto range = Addresses::get().remove(address);
    check(range.has_value());
    device_heap(*devices()[static_cast<size_t>(range->device)]).give(address);
}

void populate_managed(CUdeviceptr address, uint64_t bytes, CUdevice device) {
    const auto range = Addresses::get().find(address);
    check(range && range->place == Place::kManaged);
    if (range->base != address || range->bytes != bytes || device < 0 ||
        device != ordinal_of(static_cast<uint32_t>(range->device)) || range->populated > 0)
        return;
    Device& there = *devices()[static_cast<size_t>(range->device)];
    const uint64_t granule = there.profile().granularity;
    const uint64_t taken = (bytes + granule - 1) / granule * granule;
    if (there.reserve(taken)) Addresses::get().set_populated(address, taken);  // a full device: they stay on the host
}

void free_managed(const Range& range) {
    if (range.populated > 0) devices()[static_cast<size_t>(range.device)]->release(range.populated);
    munmap(reinterpret_cast<void*>(range.base), range.bytes);
}

void release_memory_of(CUcontext context) {
    for (const Range& range : Addresses::get().remove_of(context)) {
        if (range.place == Place::kDevice)
            device_heap(*context->device).give(range.base);
        else if (range.place == Place::kManaged)
            free_managed(range);
        else if (range.place == Place::kHost)
            munmap(reinterpret_cast<void*>(range.base), range.bytes);
        else if (range.place == Place::kImported)
            forget_addresses(range.base, range.bytes);
    }
}

}  // namespace gemlet::sim
