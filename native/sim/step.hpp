// One operation as the program described it: the same thing whether it is put on a stream, captured, or a graph node.
#pragma once

#include <variant>
#include <vector>

#include "graph_memory.hpp"
#include "handles.hpp"

namespace gemlet::sim {

struct KernelStep {
    CUDA_KERNEL_NODE_PARAMS_v3 params{};  // kernelParams and extra are not valid here
    std::shared_ptr<const Entry> entry;
    std::vector<uint64_t> arguments;             // as many as the kernel contract needs
    std::vector<std::vector<uint64_t>> storage;  // what GetParams shows: copies of the arguments
    std::vector<void*> pointers;
    const Profile* profile = nullptr;
};

struct CopyStep {
    CUDA_MEMCPY3D copy{};
    CUcontext context = nullptr;
};

struct SetStep {
    CUDA_MEMSET_NODE_PARAMS params{};
    const Profile* profile = nullptr;
};

struct HostStep {
    CUDA_HOST_NODE_PARAMS params{};
};

struct EmptyStep {};

struct RecordStep {
    CUevent event = nullptr;
};

struct AwaitStep {
    CUevent event = nullptr;
};

struct ChildStep {
    CUgraph graph = nullptr;  // a clone that the node owns
};

// Writes and waits on memory words (cuStreamWriteValue and the like).
struct WordStep {
    CUdeviceptr address = 0;
    uint64_t value = 0;
    unsigned flags = 0;
    bool wide = false;
    bool wait = false;
};

// Memory of a graph: it is there from the graph's first launch on, so launching these does nothing.
struct AllocStep {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    std::shared_ptr<GraphRange> range;
};

struct FreeStep {
    std::shared_ptr<GraphRange> range;
};

using Step = std::variant<KernelStep, CopyStep, SetStep, HostStep, EmptyStep, RecordStep, AwaitStep, ChildStep,
                          WordStep, AllocStep, FreeStep>;

// Appends the operations that carry `step` out to `ops`.
void append_operations(const Step& step, std::vector<OpRef>& ops);

// Puts the step on a stream, or into the graph the stream is capturing.
void submit(CUstream stream, Step step);
// ... and waits for it. Not allowed on a capturing stream.
void submit_and_wait(CUstream stream, Step step);

KernelStep kernel_step(const CUDA_KERNEL_NODE_PARAMS_v3& params);
KernelStep kernel_step(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, void** params, void** extra);
CopyStep copy_step(const CUDA_MEMCPY3D& copy, CUcontext context);
CopyStep copy_step(uintptr_t to, uintptr_t from, uint64_t bytes);
SetStep set_step(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height);

// The kernel contract: how long an entry runs and what it does (kernels.cpp).
uint64_t kernel_cost(const KernelStep& step);
// The part of the device that its blocks fill, of kWhole.
uint32_t kernel_width(const KernelStep& step);
// How many blocks of this many threads and bytes of shared memory a multiprocessor holds.
int blocks_per_multiprocessor(const Profile& profile, int block, size_t shared);
bool kernel_acts(const KernelStep& step);  // has an effect
// Of a kernel that runs until other kernels have come: whether they have. Null: it waits for nothing.
std::function<bool()> kernel_poll(const KernelStep& step);
std::function<void(uint64_t, uint64_t)> kernel_effect(const KernelStep& step);

// Ends the process as an illegal address would, with words, if the range is device address space without memory.
void require_mapped(const char* what, uintptr_t address, uint64_t bytes);

// Operation that takes no device time but acts in stream order: freeing, a callback.
OpRef action(std::function<void()> effect);
OpRef host_action(std::function<void()> effect);

}  // namespace gemlet::sim
