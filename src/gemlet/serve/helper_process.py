"""Processes that the server starts for work of its own end with it."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_server() -> None:
    """To be called in such a process. A pool ends its processes at a proper end only; a server that is killed would
    leave this one for ever."""
    threading.Thread(target=_wait_for_server, daemon=True).start()


def _wait_for_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(0)
