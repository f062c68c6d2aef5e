"""Processes that the server starts for work of its own: how they are started, and that they end with it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from gemlet.errors import GemletError

if TYPE_CHECKING:
    from collections.abc import Callable


def pool_of_one(initializer: Callable[..., None], *given: Any) -> ProcessPoolExecutor:
    """One process, which the first work starts. Raises `GemletError` where no lock can be shared with it."""
    # spawn: a fork would take the server's sockets and threads along.
    context = multiprocessing.get_context("spawn")
    try:
        return ProcessPoolExecutor(1, mp_context=context, initializer=initializer, initargs=given)
    except OSError as error:  # the C library keeps shared locks there
        raise GemletError(
            f"/dev/shm: no shared lock can be made: {error.strerror}; expected a file system that can be written to",
            hint="mount one, as `--tmpfs /dev/shm` of docker does, or make room in it",
        ) from None


def end_with_server() -> None:
    """To be called in such a process. A pool ends its processes at a proper end only; a server that is killed would
    leave this one for ever."""
    threading.Thread(target=_wait_for_server, daemon=True).start()


def _wait_for_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(0)
