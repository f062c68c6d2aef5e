"""`starts.py THREADS [fork]`: threads that start CUDA at the same moment, on two devices, and end it again."""

from __future__ import annotations

import os
import sys
import threading

from cuda.bindings import driver as cu
from cuda_calls import check, kernel, launch, load


def work(number: int) -> None:
    together.wait()
    check(cu.cuInit(0))
    device = number % 2
    check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(device))))
    module = load()
    spin = kernel(module, "spin")
    stream = check(cu.cuStreamCreate(1))
    memory = check(cu.cuMemAlloc(1 << 20))
    for launched in range(1, 31):
        launch(spin, stream, 20_000)
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
