"""What became of each request and where its time went, as a line of JSON, and for traces.

The event loop only keeps what happened; a thread writes it. The file is opened for each writing, so that it may be
moved away meanwhile. Where it cannot be written, or too much waits for that, lines are left out, and the log says how
many. It may be a pipe, which is not waited for: a thread that hangs would keep the server from ending.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gemlet.errors import UsageError
from gemlet.readiness import await_writable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.dispatch.request import Request

logger = logging.getLogger(__name__)
MAX_LINES = 200_000  # that wait to be written
WRITE_S = 0.5
MOST = 1024  # characters of what clients and models say: lines wait in memory, and on the disk for longer
CUT = "..."
READER_S = 5.0  # for the reader of a pipe to make room


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request; ``time``: when it arrived, in seconds since 1970.

    received_ms: until it was parsed and checked; queued_ms: until its batch started; way_ms: of the batch to its
    executor and back, and through what else that one runs; computed_ms: of the batch alone; answered_ms: until its
    answer was handed to the connection. total_ms: all of them. outcome: "answered", the reason of a refusal, or
    "cancelled". batch: rows of its batch, itself among them. sm: share of its gpu-let, 0 to 1.
    """

    time: float
    model: str
    outcome: str
    total_ms: float
    version: str = ""
    id: str = ""
    trace: str = ""
    message: str = ""
    rows: int = 0
    batch: int = 0
    gpu_let: str = ""
    sm: float = 0.0
    tries: int = 0
    received_ms: float = 0.0
    queued_ms: float = 0.0
    way_ms: float = 0.0
    computed_ms: float = 0.0
    answered_ms: float = 0.0
    deadline_ms: float = 0.0


class Ran(NamedTuple):
    """The batch that a request was in: by which version, its rows, where on what share of the device, and when it
    started and was back."""

    version: str
    rows: int
    gpu_let: str
    sm: float
    started: float
    computed_ms: float
    back: float


class RequestLog:
    """Appends to ``path``, if any, and tells ``export``, in a thread. Times of calls are milliseconds of
    time.monotonic(). Raises UsageError."""

    def __init__(self, path: Path | None, export: Callable[[list[Line]], None] | None = None) -> None:
        self.path = path
        self._export = export
        self._lines: list[Line] = []
        self._lost = 0
        self._torn = False  # whether the file ends in the middle of a line
        self._began = _unix_began()
        self._encoder = msgspec.json.Encoder()
        if path is None:
            return
        try:
            os.close(_opened(path))
        except OSError as error:
            hint = "name a file in a directory that you can write to, or a pipe that is read"
            raise UsageError(f"--request-log: {path}: {_why(error)}", hint=hint) from None

    def add(self, line: Line) -> None:
        if len(self._lines) < MAX_LINES:
            self._lines.append(line)
        else:
            self._lost += 1

    def ended(self, call: Call, outcome: str, now: float, *, version: str = "", message: str = "") -> None:
        """A request without an answer of its model."""
        line = Line(
            time=self._unix(call.arrived),
            model=_shortened(call.model),
            version=_shortened(version or call.version),
            id=_shortened(call.id),
            trace=call.trace,
            outcome=outcome,
            message=_shortened(message),
            total_ms=_rounded(now - call.arrived),
            tries=call.tries,
        )
        self.add(line)

    def answered(self, request: Request, ran: Ran, now: float) -> None:
        """A request whose answer is on its way."""
        call: Call = request.payload
        line = Line(
            time=self._unix(call.arrived),
            model=call.model,
            version=ran.version,
            id=_shortened(call.id),
            trace=call.trace,
            outcome="answered",
            rows=request.rows,
            batch=ran.rows,
            gpu_let=ran.gpu_let,
            sm=round(ran.sm, 4),
            tries=call.tries,
            received_ms=_rounded(call.admitted - call.arrived),
            queued_ms=_rounded(ran.started - call.admitted),
            way_ms=_rounded(ran.back - ran.started - ran.computed_ms),
            computed_ms=_rounded(ran.computed_ms),
            answered_ms=_rounded(now - ran.back),
            total_ms=_rounded(now - call.arrived),
            deadline_ms=_rounded(request.deadline - request.arrived),
        )
        self.add(line)

    def _unix(self, at_ms: float) -> float:
        return round(self._began + at_ms / 1000, 6)

    async def write(self) -> None:
        """Everything so far, in a thread. Follows the machine's clock, which may be set while a server runs."""
        self._began = _unix_began()
        if self._lines or self._lost:
            lines, self._lines = self._lines, []
            await asyncio.to_thread(self._hand_on, lines)

    def _hand_on(self, lines: list[Line]) -> None:
        if self._export is not None:
            try:
                self._export(lines)
            except Exception:
                logger.exception("spans of %d requests are not exported", len(lines))
        if self.path is not None:
            self._append(lines, self.path)

    def _append(self, lines: list[Line], path: Path) -> None:
        data = b"\n" * self._torn + self._encoder.encode_lines(lines)
        view, written, why = memoryview(data), 0, ""
        until = time.monotonic() + READER_S
        try:
            descriptor = _opened(path)
            try:
                while written < len(data):
                    written += _written(descriptor, view[written:], until)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._lost += len(lines) - data.count(b"\n", self._torn, max(written, self._torn))
            why = f"{_why(error)}; "
        if written:
            self._torn = data[written - 1] != ord("\n")
        if self._lost:
            logger.log(
                logging.ERROR if why else logging.WARNING, "%s: %s%d requests are not logged", path, why, self._lost
            )
        self._lost = 0


def _unix_began() -> float:
    """When time.monotonic() was 0, by the machine's clock as it is now."""
    return time.time() - time.monotonic()


def _shortened(text: str) -> str:
    return text if len(text) <= MOST else text[: MOST - len(CUT)] + CUT


def _rounded(ms: float) -> float:
    """Microseconds are fine enough."""
    return round(ms, 3)


def _opened(path: Path) -> int:
    """A descriptor to append by, which waits for nobody. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def _written(descriptor: int, data: memoryview, until: float) -> int:
    """How many bytes of it are. Raises OSError, also where a pipe is full at that time."""
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        if not await_writable(descriptor, until - time.monotonic()):
            raise
        return 0


def _why(error: OSError) -> str:
    if error.errno == errno.ENXIO:
        return "nobody reads this pipe"
    if isinstance(error, BlockingIOError):
        return "the reader of this pipe is too slow"
    return error.strerror or str(error)
