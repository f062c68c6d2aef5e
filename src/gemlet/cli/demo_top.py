"""The end of `gemlet demo` on a terminal: its programs once more, in `gemlet top`, until that is left."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gemlet.daemon.connection import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.cli.demo_programs import Programs
    from gemlet.daemon.address import Endpoint
    from gemlet.daemon.status import Status

LONGEST_SECONDS = 3600.0  # nobody looks any more


class _Left(Exception):
    """The screen was left before the programs ended."""


def watch(programs: Programs, minima: Mapping[str, float], endpoint: Endpoint) -> None:
    """Starts a program for each group of ``minima``, shows them, and ends them when the screen is left."""
    from gemlet.monitor.reader import read_status
    from gemlet.monitor.top import Top

    def read() -> Status:
        with connect([endpoint]) as daemon:
            return read_status(daemon)

    left = threading.Event()

    def drain() -> None:  # a program whose reports nobody reads stops
        while programs.alive() and not left.is_set():
            programs.read(timeout=0.2)

    reader = threading.Thread(target=drain, name="reports", daemon=True)
    try:
        with programs.running(minima, LONGEST_SECONDS):
            reader.start()
            try:
                Top(read).run()
            finally:
                left.set()
                reader.join()
            raise _Left  # not by the end of the block, which waits for the programs
    except _Left:
        pass
