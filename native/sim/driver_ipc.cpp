// Device memory shared between processes by handle. The exporter's memory is a file; the importer opens it through
// /proc, so the exporter must be alive when the handle is opened, as with CUDA.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "addresses.hpp"
#include "allocations.hpp"
#include "capture.hpp"
#include "liveness.hpp"

using namespace gemlet::sim;

namespace {

struct Ticket {
    uint32_t magic, pid;
    uint64_t start;
    uint64_t offset, bytes;  // in the exporter's file
    uint64_t within;         // of the allocation in what is mapped
    int32_t fd, device;
};
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle));
constexpr uint32_t kTicketMagic = 0x54504347;
constexpr uint64_t kPage = 4096;

}  // namespace

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    return api(__func__, [&] {
        check(handle != nullptr);
        const auto range = Addresses::get().find(address);
        check(range && range->place == Place::kDevice && range->backing != nullptr);
        const uint64_t offset = range->backing->offset() + range->backing_offset;
        Ticket ticket{};
        ticket.magic = kTicketMagic;
        ticket.pid = static_cast<uint32_t>(getpid());
        ticket.start = process_start(ticket.pid);
        ticket.offset = offset / kPage * kPage;
        ticket.within = offset - ticket.offset;
        ticket.bytes = range->bytes;
        ticket.fd = range->backing->fd();
        ticket.device = range->device;
        std::memset(handle, 0, sizeof *handle);
        std::memcpy(handle, &ticket, sizeof ticket);
    });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
    return api(__func__, [&] {
        check(address != nullptr);
        CUcontext context = owner_of(require_context());
        Ticket ticket;
        std::memcpy(&ticket, &handle, sizeof ticket);
        check(ticket.magic == kTicketMagic);
        check(ticket.pid != static_cast<uint32_t>(getpid()),
              CUDA_ERROR_INVALID_CONTEXT);  // not for the exporter itself
        check(process_start(ticket.pid) == ticket.start);
        char path[64];
        std::snprintf(path, sizeof path, "/proc/%u/fd/%d", ticket.pid, ticket.fd);
        const int fd = open(path, O_RDWR | O_CLOEXEC);
        check(fd >= 0, CUDA_ERROR_MAP_FAILED);
        const uint64_t length = (ticket.within + ticket.bytes + kPage - 1) / kPage * kPage;
        auto backing = Backing::from_descriptor(fd, ticket.offset, length);
        const uintptr_t base = backing->map(0, 0, length, true);
        check(base != 0, CUDA_ERROR_MAP_FAILED);
        Range range;
        range.base = base + ticket.within;
        range.bytes = ticket.bytes;
        range.place = Place::kImported;
        range.device = ticket.device;
        range.context = context;
        range.backing = std::move(backing);
        range.backing_offset = ticket.within;
        *address = range.base;
        Addresses::get().add(std::move(range));
    });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    return api(__func__, [&] {
        const auto range = Addresses::get().find(address);
        check(range && range->base == address && range->place == Place::kImported);
        synchronize_context(require_context());
        Addresses::get().remove(address);
        forget_addresses(address - range->backing_offset, range->backing->bytes());
    });
}

}  // extern "C"
