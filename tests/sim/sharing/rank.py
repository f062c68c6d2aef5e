"""One rank of a job: `rank.py DEVICE RANKS STEPS FILE long|short`. In each step it works, and meets the others on the
device.

Ends when all steps are done. The file is the word in which the ranks count their meetings.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

from cuda.bindings import driver as cu

PTX = b""".version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
.visible .entry meet(.param .u64 address, .param .u64 ranks, .param .u64 number) { ret; }
\0"""


def check(result: tuple) -> object:  # type: ignore[type-arg]
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if len(values) == 1 else values


device, ranks, steps = (int(argument) for argument in sys.argv[1:4])
kernels, kernel_ns, waits = {"long": (4, 200_000, 10), "short": (1, 20_000, 100)}[sys.argv[5]]
with Path(sys.argv[4]).open("r+b") as file:
    word = mmap.mmap(file.fileno(), 8)
address = ctypes.addressof(ctypes.c_uint64.from_buffer(word))
check(cu.cuInit(0))
check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(device))))
module = check(cu.cuModuleLoadData(PTX))
spin, meet = (check(cu.cuModuleGetFunction(module, name)) for name in (b"spin", b"meet"))
stream = check(cu.cuStreamCreate(1))


def launch(kernel: object, *values: int) -> None:
    check(cu.cuLaunchKernel(kernel, 132, 1, 1, 128, 1, 1, 0, stream, (values, (ctypes.c_uint64,) * len(values)), 0))


print("begins", flush=True)
sys.stdin.readline()
for number in range(1, steps + 1):
    for _ in range(kernels):
        launch(spin, kernel_ns)
    launch(meet, address, ranks, number)
    if number % waits == 0:
        check(cu.cuStreamSynchronize(stream))
check(cu.cuStreamSynchronize(stream))
print("ends", flush=True)
