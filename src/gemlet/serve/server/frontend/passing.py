"""Work with large bytes in a process of the server's own: they pass in files in memory, beside what is pickled.

Pickling copies them two times on either side, and holds the interpreter's lock meanwhile, for which the event loop
waits: 80 ms for 64 MiB. Files are written and read without the lock.
"""

from __future__ import annotations

import asyncio
import errno
import io
import mmap
import os
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemlet.serve.helper_process import pool_of_one
from gemlet.serve.server.frontend.own_process import Refused, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.inference_protocol.tensors import Buffer

LARGE_BYTES = 256 * 1024
Place = tuple[int, int]  # offset and bytes in a file


class Parcel(NamedTuple):
    """rest: pickled, without what lies in the file. nbytes: there."""

    rest: bytes
    nbytes: int


class Process:
    """One, which starts with its first work. ``initializer`` is called in it. Raises GemletError."""

    def __init__(self, initializer: Callable[[], None]) -> None:
        self._to, self._from = File(), File()
        self.pool = pool_of_one(_begin, initializer, self._to.path, self._from.path)

    async def __call__(self, act: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """What work() gives of it there; one at a time. Bytes come back as views. Raises BrokenProcessPool, OSError."""
        try:
            parcel = await asyncio.to_thread(pack, given, self._to)
            answer = await asyncio.wrap_future(self.pool.submit(_work, act, parcel))
            if answer.nbytes:
                return await asyncio.to_thread(unpack, answer, self._from)
            return pickle.loads(answer.rest)
        finally:
            if self._to.nbytes:
                await asyncio.to_thread(self._to.empty)

    def close(self, *, wait: bool = True) -> None:
        for process in list((self.pool._processes or {}).values()):
            process.kill()
        self.pool.shutdown(wait=wait, cancel_futures=True)


class File:
    """In memory, without a name; open until the end of this object, which a thread may have that still uses it."""

    def __init__(self, path: str = "") -> None:
        self.descriptor = (
            os.open(path, os.O_RDWR | os.O_CLOEXEC) if path else os.memfd_create("gemlet-parcel", os.MFD_CLOEXEC)
        )
        self.nbytes = 0  # of what was packed

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def path(self) -> str:
        """For a process of the same user."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def empty(self) -> None:
        os.ftruncate(self.descriptor, 0)
        self.nbytes = 0


class _Packer(pickle.Pickler):
    def __init__(self, into: io.BytesIO, file: File) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self._file = file

    def persistent_id(self, each: Any) -> Place | None:
        if not isinstance(each, bytes | bytearray | memoryview) or len(each) < LARGE_BYTES:
            return None
        file, view = self._file, memoryview(each)
        begun = file.nbytes
        while file.nbytes - begun < len(view):
            file.nbytes += os.pwrite(file.descriptor, view[file.nbytes - begun :], file.nbytes)
        return begun, len(view)

    def reducer_override(self, each: Any) -> Any:
        return (bytes, (bytes(each),)) if isinstance(each, memoryview) else NotImplemented


class _Unpacker(pickle.Unpickler):
    def __init__(self, parcel: Parcel, at: Callable[[int, int], Buffer]) -> None:
        super().__init__(io.BytesIO(parcel.rest))
        self._at = at

    def persistent_load(self, place: Place) -> Buffer:
        return self._at(*place)


def pack(given: object, file: File) -> Parcel:
    """Views become bytes, or views again. The file is to be empty. Raises OSError, and what pickle does."""
    file.nbytes = 0
    packed = io.BytesIO()
    _Packer(packed, file).dump(given)
    return Parcel(packed.getvalue(), file.nbytes)


def unpack(parcel: Parcel, file: File) -> Any:
    """What was packed, its large bytes as copies; the file is empty then. Raises OSError."""

    def read(offset: int, nbytes: int) -> memoryview:
        data = np.empty(nbytes, np.uint8).data  # which is not set to 0 first
        done = 0
        while done < nbytes:
            count = os.preadv(file.descriptor, [data[done:]], offset + done)
            if not count:  # the other process made it shorter
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count
        return data

    try:
        return _Unpacker(parcel, read).load()
    finally:
        file.empty()


# In the process

_files: tuple[File, File]


def _begin(initializer: Callable[[], None], *paths: str) -> None:
    global _files  # noqa: PLW0603  the pool's initializer has no other place
    _files = File(paths[0]), File(paths[1])
    initializer()


def _work(act: Callable[..., Any], parcel: Parcel) -> Parcel:
    result, into = work(_act, act, parcel), _files[1]
    try:
        return pack(result, into)
    except OSError as error:  # there is no memory left
        into.empty()
        return pack(Refused("failed", f"the process that reads large requests: {error.strerror}"), into)


def _act(act: Callable[..., Any], parcel: Parcel) -> Any:
    there = memoryview(mmap.mmap(_files[0].descriptor, parcel.nbytes) if parcel.nbytes else b"")
    return act(*_Unpacker(parcel, lambda offset, nbytes: there[offset : offset + nbytes]).load())
