"""Memory of devices that clients share, in a process that opens its handles and copies between it and the host.

The server has no context on a device: one takes hundreds of MiB there, and an error in one stays. When the client of a
region ends, its memory goes, and a copy from there may be such an error: then the process ends, with all its regions.
What is done there is in device_copies.py. Tensors pass in files without a name, which that process opens by the
server's descriptor.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import mmap
import os
import threading
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gemlet.errors import GemletError
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.execution import arena
from gemlet.serve.helper_process import pool_of_one, prepare
from gemlet.serve.server.frontend import device_copies
from gemlet.serve.server.frontend.own_process import Refused, work

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ProcessPoolExecutor

    from gemlet.inference_protocol.tensors import Buffer

LIMIT_S = 30.0  # of one call there: a driver that hangs keeps others' requests waiting no longer


class DeviceMemory:
    """The process starts with the first region. Its regions have numbers. All methods but close() take time, and raise
    Refusal."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def open(self, handle: bytes, device: int, nbytes: int) -> int:
        """The number of a region: the first ``nbytes`` of the memory that cuIpcGetMemHandle made a handle for."""
        number = next(self._numbers)
        self._call(device_copies.open_handle, number, handle, device, nbytes)
        return number

    def read(self, number: int, offset: int, nbytes: int) -> memoryview:
        """Bytes of a region."""
        if not nbytes:
            return memoryview(b"")
        descriptor = arena.create(nbytes)
        try:
            self._call(device_copies.read, number, offset, _path(descriptor))
            return memoryview(mmap.mmap(descriptor, nbytes))
        finally:
            os.close(descriptor)

    def write(self, number: int, offset: int, data: Buffer) -> None:
        """Puts bytes into a region."""
        if not len(data):
            return
        descriptor = arena.create(len(data))
        try:
            with closing(mmap.mmap(descriptor, len(data))) as staged:
                staged[:] = data
            self._call(device_copies.write, number, offset, _path(descriptor))
        finally:
            os.close(descriptor)

    def forget(self, number: int) -> None:
        """Closes a region when what was asked of it before is done. Takes no time, and raises nothing."""
        with self._lock:
            pool = self._pool
        if pool is not None:
            try:
                pool.submit(device_copies.close_handle, number)
            except (BrokenProcessPool, RuntimeError):
                self._end(pool)  # its regions are closed

    def close(self) -> None:
        with self._lock:
            pool = self._pool
        if pool is not None:
            self._end(pool)

    def _call(self, act: Callable[..., Any], *given: Any) -> None:
        pool = self._started()
        try:
            result = pool.submit(work, act, *given).result(LIMIT_S)
        except concurrent.futures.TimeoutError:
            self._end(pool)
            raise Refusal("failed", f"the device did not copy within {LIMIT_S:g} s: register regions again") from None
        except (BrokenProcessPool, RuntimeError, concurrent.futures.CancelledError):
            self._end(pool)
            message = "the process with the clients' device memory ended: register regions again"
            raise Refusal("failed", message) from None
        if isinstance(result, Refused):
            raise Refusal(result.reason, result.message)  # type: ignore[arg-type]

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                try:
                    self._pool = pool_of_one(prepare)
                except GemletError as error:
                    raise Refusal("failed", error.message) from None
            return self._pool

    def _end(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"
