"""What the driver really takes for an allocation, as nvidia-smi counts it: constants of native/hook/memory/size.cpp.

python -m bench.memory_truth        on a GPU, nothing else running; needs cuda-bindings and nvidia-ml-py
"""

from __future__ import annotations

import os

import pynvml
from cuda.bindings import driver as cu

MIB = 1 << 20


def check(result: tuple) -> object:  # type: ignore[type-arg]
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if len(values) == 1 else values


def held(handle: object) -> int:
    for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if p.pid == os.getpid():
            return int(p.usedGpuMemory or 0)
    return 0


def main() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    check(cu.cuInit(0))
    print("processes listed before a context:", len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    free0 = pynvml.nvmlDeviceGetMemoryInfo(handle).free
    context = check(cu.cuDevicePrimaryCtxRetain(0))
    check(cu.cuCtxSetCurrent(context))
    base = held(handle)
    fell = free0 - pynvml.nvmlDeviceGetMemoryInfo(handle).free
    print(f"context: NVML process {base / MIB:.1f} MiB, device free fell by {fell / MIB:.1f} MiB")
    print(f"{'size':>12} {'count':>6} {'taken MiB':>10} {'each':>12}")
    for size, count in [
        (1, 1), (1, 5000), (256, 20000), (512, 10000), (513, 10000), (4096, 2000), (65536, 200), (262144, 64),
        (524288, 64), (MIB - 1, 64), (MIB, 64), (MIB + 1, 64), (MIB * 3 // 2, 64), (2 * MIB - 1, 64), (2 * MIB, 64),
        (2 * MIB + 1, 64), (3 * MIB, 64), (20 * MIB, 16), (33 * MIB + 5, 16), (1 << 30, 4),
    ]:  # fmt: skip
        before = held(handle)
        pointers = [check(cu.cuMemAlloc(size)) for _ in range(count)]
        taken = held(handle) - before
        for p in pointers:
            check(cu.cuMemFree(p))
        after = held(handle) - before
        left = f"left after free: {after / MIB:.2f} MiB"
        print(f"{size:12d} {count:6d} {taken / MIB:10.2f} {taken / count:12.1f}   {left}")
    for width, height in [(100, 100), (5000, 5000)]:
        before = held(handle)
        pointer, pitch = check(cu.cuMemAllocPitch(width, height, 4))  # type: ignore[misc]
        print(f"pitch {width} x {height}: pitch {pitch}, taken {(held(handle) - before) / MIB:.2f} MiB")
        check(cu.cuMemFree(pointer))
    for size, count in [(1, 1), (MIB, 16), (64 * MIB, 4)]:
        before = held(handle)
        pointers = [check(cu.cuMemAllocAsync(size, 0)) for _ in range(count)]
        check(cu.cuCtxSynchronize())
        taken = held(handle) - before
        pool = check(cu.cuDeviceGetDefaultMemPool(0))
        attribute = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        reserved = int(check(cu.cuMemPoolGetAttribute(pool, attribute)))  # type: ignore[arg-type]
        print(f"async {size} x {count}: taken {taken / MIB:.2f} MiB, pool reserved {reserved / MIB:.2f} MiB")
        for p in pointers:
            check(cu.cuMemFreeAsync(p, 0))
        check(cu.cuCtxSynchronize())
    before = held(handle)
    stream = check(cu.cuStreamCreate(0))
    print(f"stream: {(held(handle) - before) / MIB:.2f} MiB", stream is not None)


if __name__ == "__main__":
    main()
