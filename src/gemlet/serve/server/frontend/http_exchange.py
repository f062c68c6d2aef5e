"""A request over HTTP/1.1 and its answer, which waits for those of the requests before it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gemlet.serve.server.frontend import limits, pieces
from gemlet.serve.server.frontend.status import HTTP, PHRASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.call import Call, Refusal

JSON = b"application/json"


class Connection(Protocol):
    """Where the answer goes."""

    @property
    def draining(self) -> bool:
        """The server ends; this is the last answer."""
        ...

    def flush(self) -> None:
        """Writes what is ready, in the order of the requests."""
        ...

    def holds(self, nbytes: int) -> None:
        """So many bytes are ready, and taken before or after the next flush()."""
        ...


class Exchange:
    """A request and its answer."""

    __slots__ = (
        "_connection", "_ended", "_out", "arrived", "call", "endless", "head_only", "keep_alive", "old",
        "request_bytes", "token", "trace",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.keep_alive = True
        self.old = False  # whether the client speaks HTTP/1.0: its connection ends unless it is told otherwise
        self.head_only = False
        self.endless = False  # whether its answer goes on until somebody ends it
        self.request_bytes = 0
        self.arrived = 0.0
        self.token = b""  # by which it was asked for, as access.Tokens knows it
        self.trace = ""  # W3C's traceparent, as it came
        self.call: Call | None = None  # while the engine has it
        self._connection = connection
        self._out: deque[Buffer] = deque()
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def unwritten(self) -> bool:
        """Whether there is something to take()."""
        return bool(self._out)

    def answer(self, status: int, kind: bytes, body: Sequence[Buffer], more: bytes = b"") -> None:
        """The whole answer; parts beyond COPY_BYTES are kept as they are. ``more``: further header lines."""
        if self._ended:
            return
        self.keep_alive = self.keep_alive and not self._connection.draining
        length = len(body[0]) if len(body) == 1 else sum([len(part) for part in body])
        head = b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s%s\r\n" % (
            status, PHRASES[status].encode(), kind, length, more, self._goes_on(),
        )  # fmt: skip
        if self.head_only:
            self._append(head)
        elif length <= limits.COPY_BYTES:
            self._append(b"".join((head, *body)))
        else:
            for piece in pieces.joined((head, *body)):
                self._append(piece)
        self._ended = True
        self._connection.flush()

    def document(self, document: Any, status: int = 200, more: bytes = b"") -> None:
        """The answer as JSON."""
        self.answer(status, JSON, [msgspec.json.encode(document)], more)

    def refuse(self, refusal: Refusal) -> None:
        """The message of a refusal, with its status."""
        more = b"" if refusal.retry_s is None else b"Retry-After: %d\r\n" % refusal.retry_s
        self.document({"error": refusal.message, "reason": refusal.reason}, HTTP[refusal.reason], more)

    def _goes_on(self) -> bytes:
        if not self.keep_alive:
            return b"Connection: close\r\n"
        return b"Connection: keep-alive\r\n" if self.old else b""

    def begin(self, kind: bytes) -> None:
        """An answer that comes piece by piece, by send(), until end(). HTTP/1.0 has none: its end is the close."""
        self.endless = True
        self.keep_alive = self.keep_alive and not self.old
        ends = b"Connection: close" if self.old else b"Transfer-Encoding: chunked"
        self._append(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n\r\n" % (kind, ends))
        self._connection.flush()

    def send(self, piece: bytes) -> None:
        self._append(piece if self.old else b"%x\r\n%s\r\n" % (len(piece), piece))
        self._connection.flush()

    def end(self) -> None:
        if not self.old:
            self._append(b"0\r\n\r\n")
        self._ended = True
        self._connection.flush()

    def _append(self, piece: Buffer) -> None:
        self._out.append(piece)
        self._connection.holds(len(piece))

    def take(self, most: int | None) -> Buffer | None:
        """What to write now, of no more than ``most`` bytes; None: nothing."""
        if not self._out:
            return None
        piece = self._out.popleft()
        if most is None or len(piece) <= most:
            return piece
        whole = memoryview(piece)
        self._out.appendleft(whole[most:])
        return whole[:most]
