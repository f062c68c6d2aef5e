#include "step.hpp"

#include <algorithm>
#include <cstring>

#include "addresses.hpp"
#include "arrays.hpp"
#include "capture.hpp"

namespace gemlet::sim {
namespace {

OpRef operation(OpKind kind, uint64_t cost) {
    auto op = std::make_shared<Op>();
    op->kind = kind;
    op->cost = cost;
    return op;
}

// One side of a copy: where its first byte is and how far rows and planes are apart.
struct Side {
    uintptr_t base;
    uint64_t pitch, plane;
    bool device;
};

bool on_device(uintptr_t address) {
    const auto range = Addresses::get().find(address);
    return range ? range->on_device() : Addresses::get().reserved(address, 1);
}

Side side(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, uint64_t pitch, uint64_t height,
          const CUDA_MEMCPY3D& copy, uint64_t x, uint64_t y, uint64_t z) {
    Side s{};
    if (type == CU_MEMORYTYPE_ARRAY) {
        const ArrayMemory memory = array_memory(array);
        s = {memory.base, memory.pitch, memory.pitch * memory.height, true};
    } else {
        s.base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
        s.device = type == CU_MEMORYTYPE_DEVICE || (type == CU_MEMORYTYPE_UNIFIED && on_device(s.base));
        s.pitch = pitch != 0 ? pitch : copy.WidthInBytes + x;
        s.plane = s.pitch * (height != 0 ? height : copy.Height + y);
    }
    s.base += x + y * s.pitch + z * s.plane;
    return s;
}

uint64_t extent(const Side& s, const CUDA_MEMCPY3D& copy) {
    if (copy.Depth == 0 || copy.Height == 0) return 0;
    return (copy.Depth - 1) * s.plane + (copy.Height - 1) * s.pitch + copy.WidthInBytes;
}

OpRef copy_operation(const CopyStep& step) {
    const CUDA_MEMCPY3D& c = step.copy;
    const Side to = side(c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstPitch, c.dstHeight, c,
                         c.dstXInBytes, c.dstY, c.dstZ);
    const Side from = side(c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcPitch, c.srcHeight, c,
                           c.srcXInBytes, c.srcY, c.srcZ);
    const uint64_t bytes = c.WidthInBytes * c.Height * c.Depth;
    const Profile& profile = step.context->device->profile();
    OpRef op;
    if (to.device && !from.device) {
        op = operation(OpKind::kToDevice, bytes);
    } else if (from.device && !to.device) {
        op = operation(OpKind::kToHost, bytes);
    } else {  // within the device the multiprocessors copy; between host addresses nobody on the device does
        const auto time = static_cast<uint64_t>(static_cast<double>(bytes) / profile.device_to_device_bytes_per_ns);
        op = operation(OpKind::kKernel, std::max<uint64_t>(time, profile.kernel_min_ns));
    }
    const bool flat = c.Height == 1 && c.Depth == 1;
    op->whole = !flat;
    op->effect = [to, from, c, flat, kernel = op->kind == OpKind::kKernel, bytes](uint64_t first, uint64_t count) {
        if (flat) {
            if (kernel) first = 0, count = bytes;
            if (from.device) require_mapped("a copy reads", from.base + first, count);
            if (to.device) require_mapped("a copy writes", to.base + first, count);
            std::memmove(reinterpret_cast<void*>(to.base + first), reinterpret_cast<const void*>(from.base + first),
                         count);
            return;
        }
        if (from.device) require_mapped("a copy reads", from.base, extent(from, c));
        if (to.device) require_mapped("a copy writes", to.base, extent(to, c));
        for (uint64_t z = 0; z < c.Depth; ++z)
            for (uint64_t y = 0; y < c.Height; ++y)
                std::memmove(reinterpret_cast<void*>(to.base + z * to.plane + y * to.pitch),
                             reinterpret_cast<const void*>(from.base + z * from.plane + y * from.pitch),
                             c.WidthInBytes);
    };
    return op;
}

OpRef set_operation(const SetStep& step) {
    const CUDA_MEMSET_NODE_PARAMS p = step.params;
    const uint64_t bytes = p.width * p.elementSize * p.height;
    const auto time = static_cast<uint64_t>(static_cast<double>(bytes) / step.profile->device_to_device_bytes_per_ns);
    OpRef op = operation(OpKind::kKernel, std::max<uint64_t>(time, step.profile->kernel_min_ns));
    op->effect = [p](uint64_t, uint64_t) {
        for (uint64_t row = 0; row < p.height; ++row) {
            auto* to = reinterpret_cast<unsigned char*>(p.dst + row * p.pitch);
            require_mapped("a memset writes", reinterpret_cast<uintptr_t>(to), p.width * p.elementSize);
            if (p.elementSize == 1) {
                std::memset(to, static_cast<int>(p.value & 0xff), p.width);
                continue;
            }
            for (uint64_t i = 0; i < p.width; ++i) std::memcpy(to + i * p.elementSize, &p.value, p.elementSize);
        }
    };
    return op;
}

OpRef word_operation(const WordStep& step) {
    const uint64_t bytes = step.wide ? 8 : 4;
    if (!step.wait) {
        return action([step, bytes] {
            require_mapped("a stream write", step.address, bytes);
            std::memcpy(reinterpret_cast<void*>(step.address), &step.value, bytes);
        });
    }
    OpRef op = operation(OpKind::kPoll, 0);
    op->poll = [step, bytes] {
        require_mapped("a stream wait", step.address, bytes);
        const uint64_t mask = step.wide ? UINT64_MAX : UINT32_MAX;
        const uint64_t now = step.wide ? __atomic_load_n(reinterpret_cast<uint64_t*>(step.address), __ATOMIC_ACQUIRE)
                                       : __atomic_load_n(reinterpret_cast<uint32_t*>(step.address), __ATOMIC_ACQUIRE);
        switch (step.flags & 3) {
            case CU_STREAM_WAIT_VALUE_GEQ: {  // cyclic comparison, as CUDA defines it
                const uint64_t ahead = (now - step.value) & mask;
                return ahead <= mask >> 1;
            }
            case CU_STREAM_WAIT_VALUE_EQ:
                return now == (step.value & mask);
            case CU_STREAM_WAIT_VALUE_AND:
                return (now & step.value) != 0;
            default:
                return (~(now | step.value) & mask) != 0;
        }
    };
    return op;
}

struct Appender {
    std::vector<OpRef>& ops;

    void operator()(const KernelStep& step) const {
        auto effect = kernel_effect(step);
        const uint64_t cost = kernel_cost(step);
        OpRef op = operation(OpKind::kKernel, cost);
        op->width = kernel_width(step);
        op->effect = std::move(effect);
        op->poll = kernel_poll(step);
        ops.push_back(std::move(op));
    }
    void operator()(const CopyStep& step) const { ops.push_back(copy_operation(step)); }
    void operator()(const SetStep& step) const { ops.push_back(set_operation(step)); }
    void operator()(const HostStep& step) const {
        ops.push_back(host_action([p = step.params] { p.fn(p.userData); }));
    }
    void operator()(const EmptyStep&) const {}
    void operator()(const RecordStep& step) const {
        OpRef op = operation(OpKind::kMarker, 0);
        step.event->op = op;
        ops.push_back(std::move(op));
    }
    void operator()(const AwaitStep& step) const {
        OpRef op = operation(OpKind::kMarker, 0);
        if (step.event != nullptr && step.event->op) op->after.push_back(step.event->op);
        ops.push_back(std::move(op));
    }
    void operator()(const ChildStep& step) const {
        for (CUgraphNode node : in_order(step.graph))
            if (node->enabled) append_operations(node->step, ops);
    }
    void operator()(const WordStep& step) const { ops.push_back(word_operation(step)); }
    void operator()(const AllocStep&) const {}
    void operator()(const FreeStep&) const {}
};

}  // namespace

void append_operations(const Step& step, std::vector<OpRef>& ops) {
    std::visit(Appender{ops}, step);
}

void submit(CUstream stream, Step step) {
    CUstream s = resolve_stream(stream);
    if (capturing(s)) return capture_step(s, std::move(step));
    forbid_implicit(s);
    std::vector<OpRef> ops;
    append_operations(step, ops);
    enqueue(s, std::move(ops));
}

void submit_and_wait(CUstream stream, Step step) {
    CUstream s = resolve_stream(stream);
    forbid_on_capturing(s);
    forbid_implicit(s);
    std::vector<OpRef> ops;
    append_operations(step, ops);
    if (ops.empty()) return;
    const OpRef last = ops.back();
    enqueue(s, std::move(ops));
    check(Dispatcher::get().wait(last), CUDA_ERROR_UNKNOWN);
}

CopyStep copy_step(const CUDA_MEMCPY3D& copy, CUcontext context) {
    return {copy, context};
}

CopyStep copy_step(uintptr_t to, uintptr_t from, uint64_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return {copy, require_context()};
}

SetStep set_step(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height) {
    SetStep step;
    step.params = {
        .dst = to, .pitch = pitch, .value = value, .elementSize = element, .width = width, .height = height};
    step.profile = &require_context()->device->profile();
    check(to % element == 0 && (height <= 1 || pitch % element == 0));
    return step;
}

OpRef action(std::function<void()> effect) {
    OpRef op = operation(OpKind::kKernel, 0);
    op->effect = [effect = std::move(effect)](uint64_t, uint64_t) { effect(); };
    return op;
}

OpRef host_action(std::function<void()> effect) {
    OpRef op = operation(OpKind::kHost, 0);
    op->effect = [effect = std::move(effect)](uint64_t, uint64_t) { effect(); };
    return op;
}

}  // namespace gemlet::sim
