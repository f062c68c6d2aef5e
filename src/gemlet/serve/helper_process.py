"""Processes that the server starts for work of its own: how they are started, and that they end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, cast

from gemlet import own_python
from gemlet.errors import GemletError
from gemlet.serve.end_signals import leave_them_to_the_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class _PoolOfOne(ProcessPoolExecutor):
    """Notices the end of its process also within a result: while this one could write there as well, the thread that
    reads results would wait for the rest for ever, and so would all that comes after it, and the pool's end."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        cast("Any", self._result_queue)._writer.close()  # the process has started, and has its own
        return future


def pool_of_one(initializer: Callable[..., None], *given: Any) -> ProcessPoolExecutor:
    """One process, which the first work starts. Raises `GemletError` where no lock can be shared with it."""
    context = own_python.spawning()  # a fork would take the server's sockets and threads along
    _start_tracker()
    try:
        return _PoolOfOne(1, mp_context=context, initializer=initializer, initargs=given)
    except OSError as error:  # the C library keeps shared locks there
        raise GemletError(
            f"/dev/shm: no shared lock can be made: {error.strerror}; expected a file system that can be written to",
            hint="mount one, as `--tmpfs /dev/shm` of docker does, or make room in it",
        ) from None


def _start_tracker() -> None:
    """Starts Python's own process that knows the locks which are shared, so that it leaves the end to the server, too.

    It ignores all signals of `END_SIGNALS` but SIGHUP, and where it has gone, each lock that is given up starts another
    one, which knows none of them: as the server ends, from several threads.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it starts with what is blocked here
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare() -> None:
    """To be called first in such a process: the server ends it, and nothing else does. A pool ends its processes at a
    proper end only; a server that is killed would leave this one for ever."""
    leave_them_to_the_server()
    threading.Thread(target=_wait_for_server, daemon=True).start()


def _wait_for_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(0)
