"""One daemon per runtime directory, by flock: the kernel frees it on any death, so there is no stale lock."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from gemlet.errors import DaemonError
from gemlet.typed_command import command

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from gemlet.daemon.address import Endpoint


class AlreadyRunning(DaemonError):
    """Another daemon owns the directory; ``pid`` is None if it could not be read."""

    def __init__(self, endpoint: Endpoint, pid: int | None) -> None:
        stop = command("stop", simulated=endpoint.kind == "simulated")
        who = f"pid {pid}" if pid else "pid unknown"
        super().__init__(
            f"a daemon is already running in {endpoint.directory} ({who})",
            hint=f"use it, stop it with `{stop}`, or give this one its own --runtime-dir",
        )
        self.pid = pid


class DirectoryLock:
    """Holds an endpoint's directory while entered; removes sockets a dead daemon left."""

    def __init__(self, endpoint: Endpoint, inherited: int | None = None) -> None:
        """``inherited``: descriptor of the lock of a daemon that hands over; the lock is both's until one closes it."""
        self._endpoint = endpoint
        self._descriptor = -1
        self._inherited = inherited
        self.yields = inherited is not None  # another daemon has the directory as well, and what is there stays

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def __enter__(self) -> DirectoryLock:
        """Raises `AlreadyRunning`, or OSError if the directory cannot be used."""
        if self._inherited is not None:
            self._descriptor = os.dup(self._inherited)
            return self
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._endpoint.lock, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise AlreadyRunning(self._endpoint, int(text) if text.isdigit() else None) from None
        self._sign()
        for path in (self._endpoint.api, self._endpoint.clients):
            remove_stale_socket(path)
        return self

    def own(self) -> None:
        """The daemon before has left."""
        self.yields = False
        self._sign()

    def _sign(self) -> None:
        os.fchmod(self._descriptor, 0o600)  # who may read it may lock it, and keep the next daemon out
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.yields:
            for path in (self._endpoint.api, self._endpoint.clients):
                path.unlink(missing_ok=True)
            # The lock file stays: unlinking it would let two daemons lock two files of the same name.
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def remove_stale_socket(path: Path) -> None:
    """Unlinks the socket of a daemon that is gone: the lock is ours, so it is. Anything else makes `listen` fail."""
    if path.is_socket():
        path.unlink()
