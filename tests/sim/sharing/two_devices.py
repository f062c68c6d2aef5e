"""A program that uses two GPUs at once from two threads; prints bytes free on each as it sees them."""

from __future__ import annotations

import threading

from cuda.bindings import driver as cu
from cuda_calls import check, kernel, launch, load


def use(ordinal: int, out: list[str]) -> None:
    context = check(cu.cuDevicePrimaryCtxRetain(ordinal))
    check(cu.cuCtxSetCurrent(context))
    spin = kernel(load(), "spin")
    pointer = check(cu.cuMemAlloc((ordinal + 1) * 256 << 20))
    stream = check(cu.cuStreamCreate(1))
    for _ in range(50):
        launch(spin, stream, 200_000)
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
