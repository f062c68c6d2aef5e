"""One daemon per runtime directory, by locks that the kernel frees on any death, so there is no stale one."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from gemlet.daemon.lock_holders import Holder, lock, locked_in_place_of, signed_by
from gemlet.errors import DaemonError
from gemlet.typed_command import command

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from gemlet.daemon.address import Endpoint


READER_SECONDS = 0.5  # that somebody who can only read the lock is given to let it go

logger = logging.getLogger(__name__)


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
            lock(self._descriptor)  # an older daemon had it by flock alone
            return self
        self._descriptor = self._locked()
        self._sign()
        for path in (self._endpoint.api, self._endpoint.clients):
            remove_stale_socket(path)
        return self

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        give_up = time.monotonic() + READER_SECONDS
        while True:
            with contextlib.ExitStack() as undo:
                descriptor = os.open(self._endpoint.lock, flags, 0o600)
                undo.callback(os.close, descriptor)
                holder = lock(descriptor)
                if holder is Holder.DAEMON:
                    raise AlreadyRunning(self._endpoint, signed_by(descriptor))
                if holder is Holder.READER:
                    if time.monotonic() < give_up:
                        time.sleep(0.01)
                        continue
                    mine = self._in_place_of(descriptor)
                    if mine is not None:
                        return mine
                    continue
                with contextlib.suppress(FileNotFoundError):  # another daemon may have put its own there
                    if os.path.samestat(os.fstat(descriptor), self._endpoint.lock.stat()):
                        undo.pop_all()
                        return descriptor

    def _in_place_of(self, descriptor: int) -> int | None:
        """A new lock in place of that one, which is no daemon's. None: it may be free by now."""
        logger.warning("%s is locked by a process that is no daemon: it is replaced", self._endpoint.lock)
        return locked_in_place_of(self._endpoint.lock, descriptor)

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
