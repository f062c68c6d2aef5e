"""A program that uses two GPUs at once from two threads; prints bytes free on each as it sees them."""

from __future__ import annotations

import threading

from cuda.bindings import driver as cu

PTX = b""".version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns, .param .u64 scale, .param .u64 out) { ret; }
"""


def check(result: tuple) -> object:  # type: ignore[type-arg]
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if len(values) == 1 else values


def use(ordinal: int, out: list[str]) -> None:
    context = check(cu.cuDevicePrimaryCtxRetain(ordinal))
    check(cu.cuCtxSetCurrent(context))
    module = check(cu.cuModuleLoadData(PTX))
    spin = check(cu.cuModuleGetFunction(module, b"spin"))
    pointer = check(cu.cuMemAlloc((ordinal + 1) * 256 << 20))
    stream = check(cu.cuStreamCreate(1))
    values = ((200_000, 0, 0), (None, None, None))
    import ctypes

    types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    for _ in range(50):
        check(cu.cuLaunchKernel(spin, 132, 1, 1, 128, 1, 1, 0, stream, (values[0], types), 0))
    check(cu.cuStreamSynchronize(stream))
    free, total = check(cu.cuMemGetInfo())  # type: ignore[misc]
    out[ordinal] = f"{total} {total - free}"
    assert pointer


check(cu.cuInit(0))
lines = ["", ""]
threads = [threading.Thread(target=use, args=(i, lines)) for i in range(2)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print("\n".join(lines), flush=True)
input()
