"""The C library's allocator, so that a daemon that once gave many large answers does not stay large."""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3  # of <malloc.h>
LARGE = 256 * 1024  # bytes; answers of the API have up to 16 MiB


def return_large_blocks() -> None:
    """Has each large block be a mapping of its own, which goes back to the kernel when it is freed.

    glibc does so at first, but takes blocks of up to 32 MiB from its heap once such ones have been freed. There, one
    small block above them keeps them all: 200 answers to `trace` at a time left 300 MiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(M_MMAP_THRESHOLD, LARGE)
