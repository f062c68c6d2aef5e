"""`starts.py THREADS [fork]`: threads that start CUDA at the same moment, on two devices, and end it again."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from cuda.bindings import driver as cu

PTX = b""".version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
\0"""


def check(result: tuple) -> object:  # type: ignore[type-arg]
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if len(values) == 1 else values


def work(number: int) -> None:
    together.wait()
    check(cu.cuInit(0))
    device = number % 2
    check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(device))))
    module = check(cu.cuModuleLoadData(PTX))
    spin = check(cu.cuModuleGetFunction(module, b"spin"))
    stream = check(cu.cuStreamCreate(1))
    memory = check(cu.cuMemAlloc(1 << 20))
    for launched in range(1, 31):
        check(cu.cuLaunchKernel(spin, 132, 1, 1, 128, 1, 1, 0, stream, ((20_000,), (ctypes.c_uint64,)), 0))
        if launched % 10 == 0:
            check(cu.cuStreamSynchronize(stream))
    check(cu.cuMemFree(memory))
    check(cu.cuStreamDestroy(stream))
    check(cu.cuModuleUnload(module))
    check(cu.cuDevicePrimaryCtxRelease(device))


together = threading.Barrier(int(sys.argv[1]))
threads = [threading.Thread(target=work, args=(number,)) for number in range(together.parties)]
for thread in threads:
    thread.start()
if sys.argv[2:]:  # as programs do that look the system over before they begin
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
for thread in threads:
    thread.join()
print("ok", flush=True)
