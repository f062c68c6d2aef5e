"""A call over gRPC: what its client has sent, what is to be sent to it."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gemlet.serve.server.frontend import grpc_wire
from gemlet.serve.server.frontend.grpc_wire import Header, Status

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.call import Refusal
    from gemlet.serve.server.frontend.large_body import LargeBody
    from gemlet.serve.server.frontend.one_by_one import OneByOne
    from gemlet.serve.server.frontend.regions import UserRegions

CALL_BYTES = 2048  # that a call takes here, about, with the library's stream of it


class Handler(Protocol):
    """What becomes of a call; a procedure makes one for each."""

    @property
    def quiet(self) -> bool:
        """Whether nothing is due to the client, although the call goes on."""
        ...

    @property
    def endless(self) -> bool:
        """Whether it is quiet, and goes on until the client ends it."""
        ...

    @property
    def full(self) -> bool:
        """Whether no further message is taken now."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Of a message, with its prefix, that waits for the end of its call; the client owes that. 0: there is none."""
        ...

    def message(self, data: Buffer, encoding: bytes) -> None:
        """One that is whole. ``encoding``: empty, gzip or deflate."""
        ...

    def ended(self) -> None:
        """The client sends no more."""
        ...

    def sent(self) -> None:
        """A message is on its way to the client."""
        ...

    def gone(self) -> None:
        """The client does not want an answer any more."""
        ...


class Connection(Protocol):
    """Where a call came by."""

    regions: UserRegions
    peer: str
    control: OneByOne

    def send(self, call: GrpcCall, message: list[Buffer]) -> None:
        """A message with its prefix, in pieces, now or as the client makes room for it."""
        ...

    def respond(self, call: GrpcCall, message: list[Buffer], trailers: list[Header]) -> None:
        """The whole of an answer: send() and finish()."""
        ...

    def finish(self, call: GrpcCall, trailers: list[Header]) -> None:
        """The end of the answer, after its messages; the whole of it, if there are none."""
        ...

    def look(self, call: GrpcCall) -> None:
        """Goes on with the messages that have come."""
        ...

    def count(self, call: GrpcCall) -> None:
        """To be called when the call holds more or less."""
        ...

    def look_later(self, call: GrpcCall) -> None:
        """As look(), when what runs now is done."""
        ...

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class GrpcCall:
    """``number``: of its stream. remaining_ms: until its deadline, when it came; None: it has none."""

    __slots__ = (
        "_tasks", "began", "begun", "buffer", "connection", "counted", "encoding", "end_seen", "finished",
        "half_closed", "handler", "number", "out", "out_bytes", "over", "remaining_ms", "token", "trace",
        "unacknowledged", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.handler: Handler | None = None
        self.remaining_ms: float | None = None
        self.encoding = b""
        self.token = b""  # that its header had, as access.Tokens knows it
        self.trace = ""  # W3C's traceparent
        self.over = False
        self.buffer: bytearray | LargeBody = bytearray()  # of messages that are not whole, or not taken
        self.began: float | None = None  # loop time since which its client has owed the rest of a message
        self.half_closed = False  # by the client
        self.end_seen = False
        self.unacknowledged = 0  # bytes for which the client gets no room yet
        self.begun = False  # the answer, by its header
        self.out: deque[int] = deque()  # bytes of the messages that have not left
        self.out_bytes = 0
        self.finished = False
        self.waiting_bytes = 0  # of messages that wait elsewhere, and answers that another process writes
        self.counted = 0  # bytes here, as the connection knows them
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: Sequence[Buffer]) -> None:
        """A message of these parts; further ones follow, or end()."""
        if not self.over and not self.finished:
            self.connection.send(self, grpc_wire.framed(message))

    def respond(self, message: Sequence[Buffer]) -> None:
        """The only message, of these parts, and the end."""
        if not self.over and not self.finished:
            self.finished = True
            self.connection.respond(self, grpc_wire.framed(message), grpc_wire.OK)

    def end(self, status: Status = Status.OK, message: str = "") -> None:
        self._end(grpc_wire.trailers(status, message) if status or message else grpc_wire.OK)

    def refuse(self, refusal: Refusal) -> None:
        self._end(grpc_wire.refused(refusal))

    def end_with(self, header: list[Header]) -> None:
        """A header of HTTP alone, before anything was sent."""
        if not self.over and not self.finished:
            self.finished = True
            self.connection.finish(self, header)

    def _end(self, trailers: list[Header]) -> None:
        self.end_with(trailers if self.begun else [*grpc_wire.HEAD, *trailers])

    def in_turn(self, work: Callable[[], Coroutine[Any, Any, None]], nbytes: int) -> None:
        """As later(), when it is the call's turn among those of its connection. ``nbytes``: of its message, which is
        here until it is done: what it asks for may wait for others."""
        held = nbytes if nbytes > CALL_BYTES else 0
        if held:
            self.holds(held)
        self.connection.control.add(partial(self._begin, work, held))

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]], held: int) -> None:
        if not self.over:
            task = self._beside(work())
            if held:
                task.add_done_callback(lambda _: self.holds(-held))
        elif held:
            self.holds(-held)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it beside; it ends with the call."""
        self._beside(work)

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.connection.run(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def holds(self, nbytes: int) -> None:
        """So many bytes more wait for another process, or their turn."""
        self.waiting_bytes += nbytes
        self.connection.count(self)

    def close(self) -> None:
        """Nothing more comes or goes; to be called by the connection."""
        self.over = True
        self.handler = None  # it knows the call
        self.out.clear()
        for task in self._tasks:
            task.cancel()
