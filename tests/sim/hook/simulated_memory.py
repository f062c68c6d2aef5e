"""Run by test_simulated.py under the hook and the simulated driver: a line a step, "step result hook-says driver-says".

What the driver says is the memory this process holds on the simulated device beyond its context.
"""

from __future__ import annotations

import ctypes
import os
import sys

from cuda.bindings import driver as cuda

MIB = 1 << 20
hook = ctypes.CDLL(sys.argv[1])
simulated = ctypes.CDLL("libcuda.so.1")
hook.gemlet_test_used.restype = ctypes.c_ulonglong
base = 0


def truth() -> int:
    held = ctypes.c_ulonglong()
    assert simulated.gemletSimMemory(0, ctypes.c_ulonglong(os.getpid()), ctypes.byref(held)) == 0
    return held.value - base


def step(name: str, answer: tuple[object, ...]) -> object:
    result = answer[0]
    print(name, int(result), hook.gemlet_test_used(0), truth())  # type: ignore[call-overload]
    return answer[1] if len(answer) > 1 else None


def properties() -> cuda.CUmemAllocationProp:
    made = cuda.CUmemAllocationProp()
    made.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = 0
    return made


cuda.cuInit(0)
_, context = cuda.cuDevicePrimaryCtxRetain(0)
cuda.cuCtxSetCurrent(context)
base = truth()
step("start", (0,))

fits = step("alloc", cuda.cuMemAlloc(40 * MIB))
step("alloc_last_block", cuda.cuMemAlloc(24 * MIB))
step("alloc_beyond", cuda.cuMemAlloc(1 * MIB))
step("small_beyond", cuda.cuMemAlloc(100))
step("free", cuda.cuMemFree(fits))
result, managed = cuda.cuMemAllocManaged(8 * MIB, 1)
print("managed", int(result), hook.gemlet_test_used(0), truth() + 8 * MIB * (int(result) == 0))  # still on the host
cuda.cuMemFree(managed)
pitched = cuda.cuMemAllocPitch(3000, 1000, 4)
step("pitch", pitched)
small = [cuda.cuMemAlloc(1000) for _ in range(10)]
step("small", small[-1])
for _, pointer in small:
    cuda.cuMemFree(pointer)
step("small_freed", (0,))
handle = step("create", cuda.cuMemCreate(4 * MIB, properties(), 0))
step("create_beyond", cuda.cuMemCreate(40 * MIB, properties(), 0))
_, address = cuda.cuMemAddressReserve(4 * MIB, 0, 0, 0)
cuda.cuMemMap(address, 4 * MIB, 0, handle, 0)
step("released_but_mapped", cuda.cuMemRelease(handle))
step("unmapped", cuda.cuMemUnmap(address, 4 * MIB))
_, stream = cuda.cuStreamCreate(1)
pooled = step("pooled", cuda.cuMemAllocAsync(2 * MIB, stream))
step("pooled_beyond", cuda.cuMemAllocAsync(64 * MIB, stream))
step("pooled_freed", cuda.cuMemFreeAsync(pooled, stream))
cuda.cuStreamSynchronize(stream)
_, pool = cuda.cuDeviceGetDefaultMemPool(0)
step("trimmed", cuda.cuMemPoolTrimTo(pool, 0))
step("reset", cuda.cuDevicePrimaryCtxReset(0))
