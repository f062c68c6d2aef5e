"""What a process that runs models writes to its standard output and error, passed on to the server's standard error.

It comes by a pipe that a thread reads: what a model prints without end does not fill the server's log, costs its event
loop nothing, and does not make the model wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from gemlet.daemon.logs import Limiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINES_PER_MINUTE = 600  # of one process: traceback after traceback, not request after request
LINE_BYTES = 8192  # a longer line is several
STDERR = 2
_CHUNK_BYTES = 65_536
_END_SECONDS = 1.0  # a child of the process may keep the pipe open


class Printed:
    """Passes on whole lines, of which ``write`` gets several at once, until there were too many in a minute.

    ``name``: of the process, for the line that says how many were left out. ``clock`` in seconds.
    """

    def __init__(
        self, name: str, write: Callable[[bytes], object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._write = write
        self._clock = clock
        self._limiter = Limiter(LINES_PER_MINUTE)
        self._begun = b""  # of a line that is not whole yet
        self._left_out = 0

    def feed(self, data: bytes) -> None:
        """Takes what was read next."""
        data, at = self._begun + data, 0
        passed = []
        while (line := _line(data, at)) is not None:
            at += len(line)
            if self._limiter.allow(None, now=self._clock())[0]:
                passed += [self._told(), line if line.endswith(b"\n") else line + b"\n"]
                continue
            # All others of this moment are counted in one look, however short they are.
            whole = max(data.rfind(b"\n") + 1, at)
            self._left_out += 1 + data.count(b"\n", at, whole)
            at = max(whole, len(data) - LINE_BYTES + 1)
        self._begun = data[at:]
        if passed:
            self._write(b"".join(passed))

    def end(self) -> None:
        """Nothing more comes."""
        last = self._begun + b"\n" if self._begun else b""
        if told := self._told() + last:
            self._write(told)

    def _told(self) -> bytes:
        count, self._left_out = self._left_out, 0
        if not count:
            return b""
        told = f"{self._name}: {count} lines that it printed were left out: more than {LINES_PER_MINUTE} a minute\n"
        return told.encode()


def _line(data: bytes, at: int) -> bytes | None:
    end = data.find(b"\n", at, at + LINE_BYTES) + 1
    if end:
        return data[at:end]
    return data[at : at + LINE_BYTES] if len(data) - at >= LINE_BYTES else None


class PassedOn:
    """A pipe for a process: ``descriptor`` is to be its standard output and error, and closed here by `began`."""

    def __init__(self, name: str) -> None:
        """Raises OSError, and RuntimeError where no thread can be started."""
        self._reading, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(Printed(name, _to_stderr),), daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._reading)
            os.close(self.descriptor)
            raise

    def began(self) -> None:
        """The process has the pipe, or there will be none."""
        os.close(self.descriptor)

    def finish(self) -> None:
        """Waits a moment for what a process that has ended said last."""
        self._thread.join(_END_SECONDS)

    def _read(self, printed: Printed) -> None:
        with os.fdopen(self._reading, "rb", buffering=0) as pipe:
            while data := pipe.read(_CHUNK_BYTES):
                printed.feed(data)
        printed.end()


@contextlib.contextmanager
def passed_on(name: str) -> Iterator[int]:
    """A descriptor for what a process writes to its standard error. Raises OSError."""
    pipe = PassedOn(name)
    try:
        yield pipe.descriptor
    finally:
        pipe.began()
        pipe.finish()


def _to_stderr(data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads it: the model's work goes on
        while data:
            data = data[os.write(STDERR, data) :]
