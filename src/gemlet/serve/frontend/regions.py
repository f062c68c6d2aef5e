"""Shared memory that clients registered: inputs are read from it, outputs written into it.

Whoever can reach the server can name any POSIX shared memory object the server may open, as with Triton: serve on
loopback, or forbid it with --no-shared-memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from gemlet.serve.call import Refusal

FOLDER = Path("/dev/shm")  # where the C library's shm_open has its objects
CUDA = "CUDA shared memory is not served: its handles open on one device, and a plan decides which device runs a model"


@dataclass(frozen=True, slots=True)
class Region:
    """``offset`` and ``nbytes``: the part of the object that was registered."""

    name: str
    key: str
    offset: int
    nbytes: int
    memory: mmap.mmap


class Regions:
    """By name. ``allowed`` False refuses all."""

    def __init__(self, *, allowed: bool = True) -> None:
        self._allowed = allowed
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Raises Refusal."""
        if not self._allowed:
            raise Refusal("unsupported", "this server takes no shared memory: it was started with --no-shared-memory")
        if name in self._regions:
            raise Refusal("invalid", f"the shared memory region {name!r} is registered already")
        plain = key.removeprefix("/")
        if not plain or "/" in plain or plain in {".", ".."}:
            raise Refusal("invalid", f"{key!r} is not the name of a POSIX shared memory object")
        if offset < 0 or nbytes <= 0:
            raise Refusal("invalid", f"a region at {offset} of {nbytes} bytes makes no sense")
        try:
            descriptor = os.open(FOLDER / plain, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise Refusal("invalid", f"shared memory {key!r} cannot be opened: {error.strerror}") from None
        try:
            size = os.fstat(descriptor).st_size
            if offset + nbytes > size:
                raise Refusal("invalid", f"shared memory {key!r} has {size} bytes, fewer than {offset + nbytes}")
            memory = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            raise Refusal("invalid", f"shared memory {key!r} cannot be mapped: {error}") from None
        finally:
            os.close(descriptor)
        self._regions[name] = Region(name, key, offset, nbytes, memory)

    def unregister(self, name: str = "") -> None:
        """The region of that name, or all. One that is in use is unmapped when it is not any more."""
        for region in [self._regions.pop(name)] if name in self._regions else []:
            _close(region)
        if not name:
            while self._regions:
                _close(self._regions.popitem()[1])

    def status(self, name: str = "") -> list[Region]:
        """All regions, or the one of that name. Raises Refusal if there is none."""
        if name and name not in self._regions:
            raise Refusal("unknown", f"there is no shared memory region {name!r}")
        return [self._regions[name]] if name else list(self._regions.values())

    def view(self, name: str, offset: int, nbytes: int) -> memoryview:
        """Part of a region; keeps it mapped. Raises Refusal."""
        region = self._regions.get(name)
        if region is None:
            raise Refusal("invalid", f"there is no shared memory region {name!r}")
        if offset < 0 or nbytes < 0 or offset + nbytes > region.nbytes:
            raise Refusal("invalid", f"{offset} + {nbytes} bytes are not within region {name!r} of {region.nbytes}")
        start = region.offset + offset
        return memoryview(region.memory)[start : start + nbytes]


def _close(region: Region) -> None:
    with contextlib.suppress(BufferError):  # a request holds a part of it; it goes with that
        region.memory.close()
