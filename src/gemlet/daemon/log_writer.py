"""The log on standard error, by a thread: nothing else waits where it is a pipe that is not read.

Clients and users cause lines, and a terminal that is held or a collector that hangs would hold up all of them. On a
full disk lines are lost.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from contextlib import suppress

from gemlet.readiness import await_writable

MAX_LINES = 10_000  # that wait to be written; further ones are lost
FLUSH_S = 1.0
STANDARD_ERROR = 2


class LogWriter(logging.Handler):
    """Writes to a descriptor, by no object that a thread may hold while the interpreter ends. Raises RuntimeError where
    no thread can be started."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(MAX_LINES)
        self._lost = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(self.format(record))

    def tell(self, line: str) -> None:
        """Writes a line as it is."""
        lost = f"{self._lost} lines of the log were lost\n" if self._lost else ""
        try:
            self._lines.put_nowait(lost + line)
            self._lost = 0
        except queue.Full:
            self._lost += 1

    def flush(self) -> None:
        """Waits until all is written, for a moment at most."""
        until = time.monotonic() + FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.001)

    def _write(self) -> None:
        while True:
            left = f"{self._lines.get()}\n".encode(errors="backslashreplace")
            with suppress(OSError):  # the line is lost
                while left:
                    try:
                        left = left[os.write(self._descriptor, left) :]
                    except BlockingIOError:
                        await_writable(self._descriptor)
            self._lines.task_done()


def to_standard_error() -> LogWriter:
    """One for this process. Raises RuntimeError as that does."""
    # Where standard error is closed, what is opened next gets its number.
    there = sys.stderr is not None
    return LogWriter(STANDARD_ERROR if there else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
