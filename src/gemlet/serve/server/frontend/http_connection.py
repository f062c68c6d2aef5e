"""HTTP/1.1 connections: requests in (http_incoming.py), answers out in the order of the requests.

What becomes of an inference request is in http_inference.py; everything else is a task of http_routes.py. A client that
does not read its answers is not read from either.

What clients may take is in limits.py. A connection holds nothing after it is lost: what comes knows it, and the two
would keep each other, and a body that was never finished, until somebody collects garbage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from gemlet import peers
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.server.frontend import (
    access,
    http_inference,
    http_routes,
    intake,
    limits,
    unpacking,
)
from gemlet.serve.server.frontend.http_exchange import Exchange
from gemlet.serve.server.frontend.http_incoming import Bad, Incoming
from gemlet.serve.server.frontend.large_body import LargeBody
from gemlet.serve.server.frontend.one_by_one import OneByOne
from gemlet.turns import or_abort

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

MAX_PIPELINED = 64
CALL_BYTES = 4096  # that a request takes here, about, until it is answered
MAX_PIPELINED_BYTES = 1 << 20  # of requests that are not answered, and answers that wait for those before them
# Of what arrives, before others have their turn: it may be requests of some twenty bytes. A body is taken as it comes.
READ_BYTES = 2 * 1024
BODY_BYTES = 16 * 1024  # of a body, that take no time
UNFINISHED = 10  # times as much counts what begins a header and does not end it: whole requests are what all wait for
TOO_MUCH = "clients hold too much: this request was under way for the longest"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
GONE_S = 0.1  # between looks whether a client that sends no more is there


class Server(http_inference.Server, Protocol):
    """What its connections know of the server; http_server.py is it."""

    def target(self, url: bytes) -> tuple[str, str] | None:
        """(model, version) of an inference URL; None for any other."""
        ...


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.began: float | None = None  # loop time at which a request began that is not complete
        self.active = server.loop.time()  # when it was last heard of
        self.asked = False
        self.peer = ""
        self.regions = server.service.regions.of(self._user)
        self._limits = server.limits
        self._service = server.service
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[Exchange] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._control = OneByOne(server.turns)
        self._unread = b""  # has arrived, and waits for its turn, or for answers to what was before it
        self._reads_on = False  # in the next turn of the loop
        self._closing = False
        self._paused = False
        self._flushes = False  # in the next turn of the loop
        self._most_written: int | None = None  # bytes at once; None: any number
        self._full_since: float | None = None  # loop time since which the client has not read
        self._closed_at = 0.0
        self._pending_bytes = 0  # of requests that are not answered
        self._out_bytes = 0  # of answers that wait for those before them
        self._large_bytes = 0  # of requests that wait elsewhere, and answers that another process writes
        self._gave_up = False  # all of these
        self._held = 0  # as holdings know it
        self._request = Incoming(self)

    @property
    def draining(self) -> bool:
        return self.server.draining

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass of it
        if transport.get_extra_info("sslcontext") is not None:
            self._most_written = limits.COPY_BYTES
        entered = self.server.enter(self, transport)
        self._control.peer = self.peer
        if not entered:
            self._fail(Bad(503, f"{self.server.most_connections} clients are connected already", "overload"))

    def connection_lost(self, _exc: Exception | None) -> None:
        self.server.leave(self)
        self.server.holdings.drop(self)
        self._transport = None
        self._request.close()  # it and the regions know this connection, and would keep it
        self.regions = self._service.regions.of(_nobody)
        self._closing = True
        for exchange in self._exchanges:
            if exchange.call is not None:
                self._service.engine.cancel(exchange.call)
                exchange.call = None
        self._exchanges.clear()
        self._control.clear()
        self._unread = b""
        tasks = list(self._tasks)  # thousands of connections may end at once, each with many
        self.server.turns.empty(self.peer, tasks, lambda: tasks.pop().cancel())

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._unread:
            self._unread += data
        elif len(data) <= READ_BYTES and self._waits_for_no_turn():  # as usual
            self._take_small(data)
        else:
            self._read(data, due=False)

    def _waits_for_no_turn(self) -> bool:
        """Whether a little more is taken at once: not of a header that has begun, which may never end."""
        return not self._in_header and self.server.turns.has_room()

    @property
    def _in_header(self) -> bool:
        return self.began is not None and not self._request.header_complete

    def _take_small(self, data: bytes) -> None:
        turns = self.server.turns
        began = turns.clock()
        self._take(data)
        took = turns.clock() - began
        turns.took(UNFINISHED * took if self._in_header else took)

    def _read(self, data: bytes, *, due: bool) -> None:
        """Takes what has arrived, for as long as a turn lasts and there is room for requests; the rest later. ``due``:
        it is its turn."""
        at = 0
        while at < len(data) and not self._closing:
            body = self._request.body_left
            small = 0 < body <= BODY_BYTES
            first = at == 0 and not body  # as much as each client may send without a turn
            at_once = not due and (small or first) and not self._paused and self._waits_for_no_turn()
            if not (due or at_once) and (self._paused or self.server.turns.over()) and self._transport is not None:
                self._unread = data[at:]
                small = len(self._unread) <= READ_BYTES and not self._in_header
                if self.began is None:  # a request is not complete
                    self._begin()
                self._transport.pause_reading()
                self._read_later(small=small)
                self._hold()
                return
            due = False
            at, begun = at + body + (0 if small else READ_BYTES), at
            (self._take_small if at_once else self._take)(data[begun:at])

    def _read_later(self, *, small: bool = False) -> None:
        if not self._paused and not self._reads_on:
            self._reads_on = True
            self.server.turns.add(self.peer, self._read_on, small=small)

    @or_abort
    def _read_on(self) -> None:
        self._reads_on = False
        if self._paused or self._closing:
            return
        data, self._unread = self._unread, b""
        self._read(data, due=True)
        if not self._unread and not self._paused and self._transport is not None:
            self._transport.resume_reading()
        self._hold()

    def _take(self, data: bytes) -> None:
        if self._closing:
            return
        if self.began is None:
            self._begin()
        try:
            request = self._request
            request.take(data)
            header = request.unfinished > READ_BYTES or request.header_bytes > READ_BYTES
            many = len(self._exchanges) > limits.FREE_CALLS
            if request.body_bytes or self._held or self._large_bytes or many or header:
                self._hold()
        except Bad as bad:
            self._fail(bad)

    def _begin(self) -> None:
        """A request comes."""
        self.began = self.active = self.server.loop.time()
        self.asked = True

    def eof_received(self) -> bool:
        """The client sends no more. It may be there and wait for its answers, or it may have gone: both look alike
        here. Whether it is there shows when something is written to it, an interim answer, which means nothing."""
        transport = self._transport
        due = bool(self._exchanges) and not self._closing and not any(each.endless for each in self._exchanges)
        parser = self._request.parser
        interim = parser is not None and parser.get_http_version() == "1.1"  # an answer that 1.0 knows not
        if transport is None or not due or not interim or transport.get_extra_info("sslcontext") is not None:
            return False  # the transport closes; TLS has no half of a connection here
        self._request.reset()
        self.began = None  # what is not complete never will be
        self._exchanges[-1].keep_alive = False
        transport.write(CONTINUE)
        self._see_client()
        return True

    def _see_client(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if peers.has_gone(self._transport):
            self.abort()
        else:
            self.server.loop.call_later(GONE_S, self._see_client)

    def pause_writing(self) -> None:
        self._full_since = self.server.loop.time()
        self._regulate()
        self._hold()

    def resume_writing(self) -> None:
        self._full_since = None
        self._regulate()
        self._hold()
        self.flush()

    @property
    def idle(self) -> bool:
        """Whether no answer is due."""
        return not self._exchanges

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing can go on before the client sends more: no answer is due, and its bytes are read."""
        return self.idle and not self._paused and not self._unread

    @property
    def unused(self) -> bool:
        """Whether it could end without a loss to anybody: no request has begun, and all answers are read."""
        return not self._exchanges and self.began is None and self._full_since is None

    @property
    def follows(self) -> bool:
        """Whether all it has is an answer that goes on until somebody ends it."""
        return bool(self._exchanges) and self._exchanges[0].endless

    @property
    def unread_since(self) -> float | None:
        """Loop time since which the client has not read its answers; None if it reads, or if others are due."""
        return self._full_since if all(each.ended for each in self._exchanges) else None

    def too_slow(self, now: float) -> bool:
        """Whether the client took too long for its header, its body, or to read."""
        if self._closed_at and now - self._closed_at > limits.CLOSE_S:
            return True
        if self.began is None and self._full_since is None:
            return False  # of thousands, most
        if self._full_since is not None and now - self._full_since > self._limits.request_s:
            return True
        limit = self._limits.request_s if self._request.header_complete else limits.HEADER_S
        return self.waits_for_client and now - (self.began or now) > limit

    def close(self) -> None:
        """Ends the connection after what is written."""
        self._closing = True
        self._closed_at = self._closed_at or self.server.loop.time()
        if self._transport is not None and not self._transport.is_closing():  # one of TLS is lost to a second close()
            self._transport.close()

    def revoke(self) -> None:
        """Ends it if it follows the log by a token that is one no more."""
        tokens = self.server.tokens
        if tokens and any(each.endless and each.token and not tokens.knows(each.token) for each in self._exchanges):
            self.abort()

    def end_endless(self) -> None:
        """What follows the log ends with that."""

    def abort(self) -> None:
        """Ends it at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def evict(self) -> None:
        """Others need what it holds."""
        reads = self._full_since is None and not self.follows
        if self._request.body_bytes and not self._exchanges and reads:
            self._fail(Bad(503, TOO_MUCH, "overload"))
        elif self._large_bytes and self._exchanges and reads:
            self._refuse_all(Refusal("overload", TOO_MUCH, retry_s=1))
        else:
            self.abort()

    def _refuse_all(self, refusal: Refusal) -> None:
        """Answers all requests that are not answered, and ends."""
        self._closing = self._gave_up = True
        self._large_bytes = 0  # what its tasks have goes with them; told piece by piece it would be held anew meanwhile
        self._request.reset()
        self._control.clear()
        for task in self._tasks:
            task.cancel()
        self._exchanges[-1].keep_alive = False
        for exchange in list(self._exchanges):
            if exchange.call is not None:
                self._service.engine.cancel(exchange.call)
                exchange.call = None
            exchange.refuse(refusal)

    def flush(self) -> None:
        """Writes what the oldest exchange has, and those after it if it is done."""
        transport = self._transport
        if transport is None:
            return
        while self._exchanges:
            exchange = self._exchanges[0]
            while not self._is_full and (piece := exchange.take(self._most_written)) is not None:
                self._out_bytes -= len(piece)  # the transport has it, which may say at once that it is full
                transport.write(piece)
                if len(piece) == self._most_written:
                    self._flush_later()  # others have their turns, however fast the client reads
                    break
            if not exchange.ended or exchange.unwritten:
                break
            self._exchanges.popleft()
            self._pending_bytes -= exchange.request_bytes
            if not exchange.keep_alive:
                self.close()
                return
        if self._paused:
            self._regulate()
        if self._held or self._full_since is not None or self._out_bytes:
            self._hold()

    def _flush_later(self) -> None:
        if not self._flushes:
            self._flushes = True
            self.server.loop.call_soon(self._flush_now)

    @or_abort
    def _flush_now(self) -> None:
        self._flushes = False
        self.flush()

    @property
    def _is_full(self) -> bool:
        """Whether to wait with what else is to be written. TLS encrypts all it is given at once, and keeps that."""
        return self._most_written is not None and self._full_since is not None

    def holds(self, nbytes: int) -> None:
        """A part of an answer of so many bytes is ready."""
        self._out_bytes += nbytes

    # What the request that comes tells

    def admit(self) -> int:
        """Whether it may be asked; as many bytes as its body may have. Raises Bad."""
        request, tokens = self._request, self.server.tokens
        if tokens is not None and request.url not in access.OPEN_PATHS:
            request.token = tokens.of(request.authorization)
            if not request.token:
                message = "expected an `Authorization: Bearer` header with one of the server's tokens"
                raise Bad(401, message, "unauthorized", b"WWW-Authenticate: Bearer\r\n")
        if tokens is None and request.origin and not access.is_of_here(request.origin, request.site):
            message = (
                "this request is of another site's page in a browser: expected a client of this machine, or tokens"
            )
            raise Bad(403, message, "unauthorized")
        most = self._limits.request_bytes if self.server.target(request.url) else limits.CONTROL_BYTES
        if request.content_length > most:
            raise Bad(413, f"the body has {request.content_length} bytes: expected at most {most}")
        if request.expects and self._transport is not None and not self._exchanges:
            self._transport.write(CONTINUE)
        return most

    def large(self, begun: bytes | bytearray, room: int) -> LargeBody:
        return LargeBody(begun, room, self.server.turns, self.peer)

    def complete(self) -> None:
        request, parser = self._request, self._request.parser
        if parser is None:
            return
        exchange = Exchange(self)
        exchange.arrived = now_ms()
        if request.trace:
            exchange.trace = request.trace.decode("latin-1")
        exchange.token = request.token
        exchange.keep_alive = parser.should_keep_alive()
        exchange.old = parser.get_http_version() == "1.0"
        self._exchanges.append(exchange)
        body = request.body.view() if isinstance(request.body, LargeBody) else request.body
        self.waits(exchange, request.body_bytes)
        url, header, encoding = request.url, request.json_length, request.encoding
        method = parser.get_method()
        exchange.head_only = method == b"HEAD"
        request.reset()
        self.began = None
        try:
            target = self.server.target(url) if method == b"POST" else None
            if encoding and encoding != b"identity":
                if len(body) <= limits.HERE_BYTES:  # what is long may inflate to nothing, and take its time
                    with contextlib.suppress(unpacking.TooLarge):
                        body, encoding = unpacking.inflate(body, encoding, limits.HERE_BYTES), b""
                if encoding and target is None:
                    raise unpacking.TooLarge(limits.CONTROL_BYTES)
            else:
                encoding = b""
            if target is None:
                given = http_routes.Given(method.decode("latin-1"), url, bytes(body), self.regions, self.peer)
                self.in_turn(partial(http_routes.respond, self._service, exchange, given), len(url) + len(body))
            else:
                http_inference.read(self, exchange, target, body, encoding=encoding, header=header)
        except Exception as error:  # noqa: BLE001  it is the answer
            exchange.refuse(intake.refusal_of(error))
        if len(self._exchanges) >= MAX_PIPELINED or self._pending_bytes > MAX_PIPELINED_BYTES:
            self._regulate()

    # Accounts

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it beside; it ends with the connection."""
        task = self.server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def in_turn(self, work: Callable[[], Coroutine[Any, Any, None]], nbytes: int) -> None:
        """As later(), when it is the request's turn among those of this connection. ``nbytes``: it has so many, which
        are here until it is done: what it asks for may wait for others."""
        if nbytes <= CALL_BYTES:  # as most
            self._control.add(lambda: self.later(work()))
        else:
            self._large_bytes += nbytes  # _take() tells of it
            self._control.add(lambda: self.later(self._of_many_bytes(work, nbytes)))

    async def _of_many_bytes(self, work: Callable[[], Coroutine[Any, Any, None]], nbytes: int) -> None:
        """Where it does not begin the connection ends, and with it what it holds."""
        try:
            await work()
        finally:
            self.waits_elsewhere(-nbytes)

    def waits(self, exchange: Exchange, nbytes: int) -> None:
        """A request that is not answered has so many bytes, or so many more."""
        exchange.request_bytes += nbytes
        self._pending_bytes += nbytes

    def waits_elsewhere(self, nbytes: int) -> None:
        """So many bytes more wait for another process; fewer, where it is below 0."""
        if not self._gave_up:
            self._large_bytes += nbytes
            self._hold()

    def _user(self) -> int | None:
        """The client at the other end."""
        return None if self._transport is None else peers.of_transport(self._transport)

    def _hold(self) -> None:
        """Tells what is held here for the client's sake."""
        if self._transport is None:
            return
        held = self._request.body_bytes + self._out_bytes + self._large_bytes + len(self._unread)
        held += CALL_BYTES * max(0, len(self._exchanges) - limits.FREE_CALLS)
        if not self._request.header_complete:
            held += self._request.header_bytes + self._request.unfinished
        if self._full_since is not None:
            held += self._transport.get_write_buffer_size()
        if held != self._held:
            self._held = held
            self.server.holdings.hold(self, held)

    def _fail(self, bad: Bad) -> None:
        self._closing = True  # nothing after this is read
        self._request.reset()
        self.server.holdings.drop(self)
        self._held = 0
        exchange = Exchange(self)
        exchange.keep_alive = False
        self._exchanges.append(exchange)
        exchange.document({"error": bad.message, "reason": bad.reason}, bad.status, bad.more)

    def _regulate(self) -> None:
        many = len(self._exchanges) >= MAX_PIPELINED or self._pending_bytes + self._out_bytes > MAX_PIPELINED_BYTES
        wanted = self._full_since is not None or (many and bool(self._exchanges))
        if wanted == self._paused or self._transport is None or self._transport.is_closing():
            return
        self._paused = wanted
        if wanted:
            self._transport.pause_reading()
        elif self._unread:
            self._read_later()
        else:
            self._transport.resume_reading()


def _nobody() -> None:
    return None
