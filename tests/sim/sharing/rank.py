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
from cuda_calls import check, kernel, launch, load

device, ranks, steps = (int(argument) for argument in sys.argv[1:4])
repeats, kernel_ns, waits = {"long": (4, 200_000, 10), "short": (1, 20_000, 100)}[sys.argv[5]]
with Path(sys.argv[4]).open("r+b") as file:
    word = mmap.mmap(file.fileno(), 8)
address = ctypes.addressof(ctypes.c_uint64.from_buffer(word))
check(cu.cuInit(0))
check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(device))))
module = load()
spin, meet = kernel(module, "spin"), kernel(module, "meet")
stream = check(cu.cuStreamCreate(1))
print("begins", flush=True)
sys.stdin.readline()
for number in range(1, steps + 1):
    for _ in range(repeats):
        launch(spin, stream, kernel_ns)
    launch(meet, stream, address, ranks, number)
    if number % waits == 0:
        check(cu.cuStreamSynchronize(stream))
check(cu.cuStreamSynchronize(stream))
print("ends", flush=True)
