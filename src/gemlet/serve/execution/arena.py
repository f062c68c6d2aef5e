"""A piece of shared memory and the allocation of its parts. One process allocates, the other only maps it.

First fit over a list of free ranges, which holds a few entries at any time: batches come and go in nearly the same
order. The memory is a memfd: pages are taken when they are first written, and go with the last process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import bisect_left

ALIGNMENT = 256  # of every tensor; what cudaMemcpy and vector loads like


def create(nbytes: int) -> int:
    """A descriptor of new shared memory of that size, which stays: pages that are gone would end who touches them."""
    descriptor = os.memfd_create("gemlet-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


class Mapping:
    """Shared memory behind a descriptor, mapped. ``view`` is all of it."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.view = memoryview(self._memory)

    def close(self) -> None:
        """Unmaps it, or leaves that to the last array that still lies in it."""
        try:
            self.view.release()
            self._memory.close()
        except BufferError:
            pass


class Arena(Mapping):
    """A mapping to allocate from."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._free = [(0, len(self.view))]  # (offset, bytes), ascending, never adjacent
        self._taken: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a free range of this many bytes, aligned; None if there is none now."""
        wanted = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        for place, (offset, size) in enumerate(self._free):
            if size >= wanted:
                if size == wanted:
                    del self._free[place]
                else:
                    self._free[place] = (offset + wanted, size - wanted)
                self._taken[offset] = wanted
                return offset
        return None

    def release(self, offset: int) -> None:
        """Gives back what allocate() gave. Raises KeyError if it did not."""
        size = self._taken.pop(offset)
        place = bisect_left(self._free, (offset, 0))
        if place < len(self._free) and self._free[place][0] == offset + size:
            size += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == offset:
            place -= 1
            offset, before = self._free.pop(place)
            size += before
        self._free.insert(place, (offset, size))

    @property
    def used(self) -> int:
        """Bytes allocated now."""
        return sum(self._taken.values())


class Nowhere:
    """In place of an arena between two machines: it has no room, so every tensor travels inside its message."""

    view = memoryview(b"")

    def allocate(self, _nbytes: int) -> int | None:
        return None

    def release(self, _offset: int) -> None:
        raise KeyError

    def close(self) -> None:
        pass
