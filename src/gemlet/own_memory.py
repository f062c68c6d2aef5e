"""Memory that this process no longer needs goes back to the system: of a server's large requests, of an agent's start.

The C library's allocator keeps what it got from the system: it raises the size from which memory is mapped on its own
with each such block that is freed, up to 32 MiB, and has a heap for each of gRPC's threads. A server that had a large
request once would look as large for ever.
"""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD, ARENAS = -3, -1, -8  # of mallopt(3)
LARGE_BYTES = 1 << 20  # more than the event loop reads at once: what is mapped has to be cleared page by page
HEAPS = 2


def give_back() -> None:
    """For this process, from now on. Nothing happens where the C library is not GNU's."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        for parameter, value in ((MMAP_THRESHOLD, LARGE_BYTES), (TRIM_THRESHOLD, LARGE_BYTES), (ARENAS, HEAPS)):
            tune(parameter, value)


def trim() -> None:
    """What is free within heaps, too."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
