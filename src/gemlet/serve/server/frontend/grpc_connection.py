"""HTTP/2 connections: frames by libnghttp2, calls of gRPC within them, back pressure in both directions.

A message is handed over where its last byte is parsed, without a task. The library keeps the protocol's states, headers
and windows, and the messages for which the client has no room yet. A client has as much room as in its windows, gets
more as its messages are taken, and gets none while it does not read. What clients may take is in limits.py, as for
HTTP/1.1, and the same budget decides who ends (holdings.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

from ngh2 import Configuration, Connection, NGH2Error, Role, Setting
from ngh2.events import DataReceived, RequestReceived, StreamClosed, StreamReset, TrailersReceived

from gemlet import peers
from gemlet.serve.server.frontend import grpc_header, grpc_wire, limits
from gemlet.serve.server.frontend.grpc_call import CALL_BYTES, GrpcCall
from gemlet.serve.server.frontend.grpc_frames import Frames
from gemlet.serve.server.frontend.grpc_rest import Rest
from gemlet.serve.server.frontend.grpc_wire import Status
from gemlet.serve.server.frontend.large_body import LargeBody
from gemlet.serve.server.frontend.one_by_one import OneByOne
from gemlet.turns import or_abort

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.server.frontend.grpc_call import Handler
    from gemlet.serve.server.frontend.grpc_wire import Header

MAX_STREAMS = 128  # of one connection; further requests wait at the client
STREAM_WINDOW = 256 * 1024  # bytes
# Calls that wait for their turn may fill half of the connection's; the library gives it back by halves.
WINDOWS = 2 * MAX_STREAMS
# Of what arrives, before others have their turn: it may be frames of ten bytes, each of which takes its time.
READ_BYTES, READ_BYTES_OF_SMALL = 256 * 1024, 2 * 1024
READ_FRAMES = 32  # likewise: those that come next may take a hundred times as long by their bytes as those before
AT_ONCE_BYTES, AT_ONCE_PART = 8 * 1024, 8  # that wait for no turn; as many as take this part of one
HEADER_COST = 2 * limits.HEADER_BYTES  # bytes that a header takes here, about, until its client ends it
WRITE_BYTES = 1 << 20  # at once, until it is known whether the client reads
CONFIGURATION = Configuration(auto_window_update=False, max_inbound_header_list_size=limits.HEADER_BYTES)


class GrpcConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: grpc_header.Server) -> None:
        self.server = server
        self.active = server.loop.time()  # when it was last heard of
        self.asked = False
        self.peer = ""
        self.regions = server.service.regions.of(self._user)
        self._transport: asyncio.Transport | None = None
        self._unread = b""  # has arrived, and waits for its turn
        self._read_bytes = READ_BYTES_OF_SMALL  # as many as take a turn
        self._at_once = READ_BYTES_OF_SMALL  # as many as wait for none
        self._to_look: dict[int, GrpcCall] = {}  # whose messages wait for another turn
        self._http = Connection(Role.SERVER, CONFIGURATION)
        self._rest = Rest(self._http)
        self._frames = Frames()
        self._header_since: float | None = None  # loop time since which the client has owed the rest of a header
        self._calls: dict[int, GrpcCall] = {}
        self._sending: dict[int, GrpcCall] = {}  # with something to send
        self.control = OneByOne(server.turns)
        self._share = server.limits.held_bytes // 4  # bytes of one client; a message, and windows, may be more
        self._withheld = False  # calls wait until others have gone
        self._queued = 0  # bytes of messages for which the client has no room
        self._blocked_since: float | None = None  # loop time since which it has made no room
        self._full_since: float | None = None  # loop time since which the client has not read
        self._closing = False
        self._closed_at = 0.0
        self._planned = False  # a flush()
        self._bytes = 0  # of all calls, in and out
        self._held = 0  # as holdings know it

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._http.initiate_connection(
            {
                Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                Setting.MAX_HEADER_LIST_SIZE: limits.HEADER_BYTES,
            }
        )
        self._http.set_local_window_size(WINDOWS * STREAM_WINDOW)
        self._flush()
        entered = self.server.enter(self, transport)
        self.control.peer = self.peer
        if not entered:
            self.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.server.leave(self)
        self.server.holdings.drop(self)
        self._transport = None
        self._unread = b""
        self._to_look.clear()
        self._closing = True
        self.control.clear()
        # Thousands of connections may end at once, each with many calls.
        self.server.turns.empty(self.peer, self._calls, self._end_a_call)
        self.regions = self.server.service.regions.of(_nobody)

    def _end_a_call(self) -> None:
        self._cancel(next(iter(self._calls.values())))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.active = self.server.loop.time()
        if self._unread:
            self._unread += data
        elif self._is_little(data) and self.server.turns.has_room():  # as usual
            began = self.server.turns.clock()
            self._take(data)
            self.server.turns.took(self.server.turns.clock() - began)
        else:
            self._read(data, due=False)

    def _is_little(self, data: bytes) -> bool:
        return len(data) <= self._at_once and self._frames.end_of(READ_FRAMES, data) == len(data)

    def _read(self, data: bytes, *, due: bool) -> None:
        """Takes what has arrived, for as long as a turn lasts; the rest in a later one. ``due``: it is its turn."""
        turns, clock, at = self.server.turns, self.server.turns.clock, 0
        while at < len(data) and not self._closing:
            if not due and turns.over() and self._transport is not None:
                self._unread = data[at:]
                self._transport.pause_reading()
                turns.add(self.peer, self._read_on, small=len(self._unread) <= self._at_once)
                return
            due, begun, began = False, at, clock()
            at = min(at + self._read_bytes, self._frames.end_of(READ_FRAMES, data, at))
            self._take(data[begun:at])
            fits = turns.fitting(self._read_bytes, clock() - began)
            self._read_bytes = max(READ_BYTES_OF_SMALL, min(READ_BYTES, fits))
            self._at_once = max(READ_BYTES_OF_SMALL, min(AT_ONCE_BYTES, fits // AT_ONCE_PART))

    @or_abort
    def _read_on(self) -> None:
        data, self._unread = self._unread, b""
        if not data or self._closing:
            return
        self._read(data, due=True)
        if not self._unread and self._full_since is None and self._transport is not None:
            self._transport.resume_reading()

    def _take(self, data: bytes) -> None:
        planned, self._planned = self._planned, True  # one write for all answers that are given meanwhile
        try:
            self._http.receive_data(data)
            self._act()
        except NGH2Error:
            self.close()
            return
        finally:
            self._planned = planned
        self._look_at_header(data)
        self._flush()
        self._hold()
        if not self._http.want_read:  # the client was told what it did wrong
            self.close()

    def _look_at_header(self, data: bytes) -> None:
        self._frames.took(data)
        if not self._frames.in_header:
            self._header_since = None
        elif self._header_since is None:
            self._header_since = self.server.loop.time()

    def _act(self) -> None:
        """Does what the library's events ask for."""
        for event in self._http.events():
            act = ACTS.get(type(event))
            if act is not None:
                act(self, event)

    def eof_received(self) -> None:
        self.abort()

    def pause_writing(self) -> None:
        self._full_since = self.server.loop.time()
        if self._transport is not None:
            self._transport.pause_reading()
        self._hold()

    def resume_writing(self) -> None:
        self._full_since = None
        if self._transport is not None and not self._transport.is_closing():
            if not self._unread:
                self._transport.resume_reading()
            self._flush()
        self._hold()

    def close(self) -> None:
        """Ends the connection after what is written."""
        if not self._closing:
            self._closing = True
            self._closed_at = self.server.loop.time()
            with contextlib.suppress(NGH2Error):  # there is nothing to tell a client that broke the protocol
                self._http.send_goaway()
                self._flush()
        if self._transport is not None and not self._transport.is_closing():  # one of TLS is lost to a second close()
            self._transport.close()

    def revoke(self) -> None:
        """Ends the calls that their clients have not ended, of those whose token is one no more."""
        tokens = self.server.tokens
        for call in list(self._calls.values()):
            if tokens is not None and call.token and not call.half_closed and not tokens.knows(call.token):
                call.end(Status.UNAUTHENTICATED, grpc_header.NO_TOKEN)

    def end_endless(self) -> None:
        """Ends calls whose clients could only wait for a connection that is gone, and would find no status there."""
        for call in list(self._calls.values()):
            if call.began is None and call.handler is not None and call.handler.endless:
                call.end(Status.UNAVAILABLE, grpc_header.ENDING)

    def abort(self) -> None:
        """Ends it at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def evict(self) -> None:
        """Others need what it holds."""
        self.abort()

    # What the server asks to choose who ends

    @property
    def began(self) -> float | None:
        """Loop time since which the client has owed the rest of a message, or of a header."""
        began = min((call.began for call in self._calls.values() if call.began is not None), default=None)
        since = self._header_since
        return since if began is None or (since is not None and since < began) else began

    @property
    def idle(self) -> bool:
        return not self._calls

    @property
    def unused(self) -> bool:
        return not self._calls and self._full_since is None and self._header_since is None

    @property
    def follows(self) -> bool:
        handlers = [call.handler for call in self._calls.values()]
        return bool(handlers) and all(handler is not None and handler.quiet for handler in handlers)

    @property
    def waits_for_client(self) -> bool:
        return self._full_since is None and all(call.began is not None for call in self._calls.values())

    @property
    def unread_since(self) -> float | None:
        since = self._full_since if self._full_since is not None else self._blocked_since
        return since if len(self._sending) == len(self._calls) else None

    def too_slow(self, now: float) -> bool:
        """Whether the client took too long for a message, or to read."""
        if self._closed_at and now - self._closed_at > limits.CLOSE_S:
            return True
        if not self._calls and self._full_since is None and self._blocked_since is None and self._header_since is None:
            return False  # of thousands, most
        if self._header_since is not None and not self._unread and now - self._header_since > limits.HEADER_S:
            return True
        began = None if self._unread else self.began  # what waits here for its turn is not the client's fault
        since = [each for each in (self._full_since, self._blocked_since, began) if each is not None]
        return bool(since) and now - min(since) > self.server.limits.request_s

    # What the client sends

    def _requested(self, event: RequestReceived) -> None:
        self.asked = True
        call = self._calls[event.stream_id] = GrpcCall(self, event.stream_id)
        procedure = grpc_header.read(self.server, call, dict(event.headers))
        if procedure is None:
            return
        call.handler = procedure(call)
        call.began = None if call.handler.quiet else self.active
        if event.end_stream:
            self._half_closed(event.stream_id)

    def _received(self, event: DataReceived) -> None:
        number, nbytes = event.stream_id, len(event.data)
        call = self._calls.get(number)
        if call is None or call.handler is None or call.over:
            self._acknowledge(nbytes, number)
        else:
            call.buffer.extend(event.data)
            if len(call.buffer) > limits.HERE_BYTES and isinstance(call.buffer, bytearray):
                self._enlarge(call, call.buffer)
            call.unacknowledged += nbytes
            if not event.end_stream:
                self.look(call)
        if event.end_stream:
            self._half_closed(number)

    def _enlarge(self, call: GrpcCall, buffer: bytearray) -> None:
        """A large message has all the room that it needs, and what may come after it before it is taken."""
        message = grpc_wire.bytes_of_first(buffer)
        if limits.COPY_BYTES < message <= self.server.limits.request_bytes:
            call.buffer = LargeBody(buffer, message + len(buffer) + STREAM_WINDOW, self.server.turns, self.peer)

    def _trailers(self, event: TrailersReceived) -> None:
        self._half_closed(event.stream_id)

    def _half_closed(self, number: int) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.half_closed = True
            self.look(call)

    def _over(self, event: StreamReset | StreamClosed) -> None:
        """Its stream has ended. Where the client broke the protocol, the library has ended it without a word before."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            self._cancel(call)

    def _in_turn(self, call: GrpcCall) -> bool:
        """Whether the client may send more for the call; where many messages are not answered, for the first only."""
        if self._bytes <= self._share:
            return True
        return all(each.began is None or each.number >= call.number for each in self._calls.values())

    def _acknowledge(self, nbytes: int, number: int) -> None:
        """The client gets room for as many bytes more."""
        with contextlib.suppress(NGH2Error):  # a stream that has ended
            self._http.acknowledge_received_data(nbytes, number)

    def look(self, call: GrpcCall) -> None:
        handler = call.handler
        if handler is None or call.over or call.finished:
            return
        try:
            waits = self._hand_over(call, handler)
        except grpc_wire.TooLong as error:
            call.end(Status.RESOURCE_EXHAUSTED, str(error))
            return
        if call.number not in self._calls or call.finished:
            return
        if not handler.full and not waits:
            if not self._in_turn(call):
                call.began, self._withheld = None, True
            elif call.unacknowledged:
                self._acknowledge(call.unacknowledged, call.number)
                call.unacknowledged = 0
                self._plan()
            owed = call.buffer or handler.kept_bytes
            if owed and call.began is None and not self._withheld:
                call.began = self.server.loop.time()
            if call.half_closed and not call.end_seen:
                self._pass_end(call, handler)
        self.count(call)

    def _hand_over(self, call: GrpcCall, handler: Handler) -> bool:
        """The messages that are whole; whether some wait for another turn. Raises TooLong."""
        handed_over = False
        while call.buffer and call.number in self._calls and not handler.full:
            if handed_over and self.server.turns.over():  # a window has room for fifty thousand
                self.look_later(call)
                return True
            found = grpc_wire.taken(call.buffer, self.server.limits.request_bytes)
            if found is None:
                break
            compressed, message, call.buffer = found
            call.began = None
            if compressed and call.encoding == b"identity":
                call.end(Status.INTERNAL, "a message is compressed, and no grpc-encoding says how")
                break
            handler.message(message, call.encoding if compressed else b"")
            handed_over = True
        return False

    def _pass_end(self, call: GrpcCall, handler: Handler) -> None:
        call.end_seen, call.began = True, None
        if call.buffer:
            call.end(Status.INVALID_ARGUMENT, "the call ends within a message")
        else:
            handler.ended()

    # What goes to the client

    def send(self, call: GrpcCall, message: list[Buffer]) -> None:
        try:
            if not call.begun:
                call.begun = True
                self._http.send_response(call.number, grpc_wire.HEAD)
            if len(message) == 1 and not (self._rest.nbytes and call.number in self._rest):
                self._http.send_data(call.number, message[0])
            else:
                self._rest.add(call.number, message)
        except NGH2Error:  # the client has ended the connection, or this stream
            self._cancel(call)
            return
        nbytes = len(message[0]) if len(message) == 1 else sum([len(piece) for piece in message])
        call.out.append(nbytes)
        call.out_bytes += nbytes
        self._sending[call.number] = call
        self._plan()

    def respond(self, call: GrpcCall, message: list[Buffer], trailers: list[Header]) -> None:
        planned, self._planned = self._planned, True
        self.send(call, message)
        if not call.over:
            self.finish(call, trailers)
        self._planned = planned
        if len(self._calls) > 1:
            self._plan()  # others may be answered in this turn of the loop, and go with it
        elif not planned:
            self._flush()
            self._hold()

    def finish(self, call: GrpcCall, trailers: list[Header]) -> None:
        try:
            if self._rest.nbytes and call.number in self._rest:
                self._rest.end(call.number, trailers)
            elif call.begun:
                self._http.send_trailers(call.number, trailers)
            else:
                self._http.send_response(call.number, trailers, end_stream=True)
        except NGH2Error:
            self._cancel(call)
            return
        self._sending[call.number] = call
        self._plan()

    def _flush(self) -> None:
        """Writes what the client has room for, until it does not read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        rest, written = self._rest, 0
        while self._full_since is None and (
            (data := self._http.data_to_send(WRITE_BYTES)) or (rest.nbytes and rest.feed())
        ):
            if data:
                transport.write(data)
                written += len(data)
            if written >= WRITE_BYTES:
                self._plan()  # others have their turns, however fast the client reads
                break
            if len(data) < WRITE_BYTES and not self._http.want_write and not rest.nbytes:
                break
        if self._sending:
            self._settle()
            if self._full_since is None and (data := self._http.data_to_send(WRITE_BYTES)):
                transport.write(data)  # the end of calls whose clients had more to say
        self._act()  # writing ends streams

    def _settle(self) -> None:
        """Knows what has left of what was to be sent."""
        before, self._queued = self._queued, self._http.queued_body_size() + self._rest.nbytes
        if self._full_since is not None:
            self._count_sent()
        elif self._queued:
            if self._queued < before or self._blocked_since is None:
                self._blocked_since = self.server.loop.time()
            self._count_sent()
        else:
            self._blocked_since = None
            sending, self._sending = self._sending, {}
            for call in sending.values():
                self._left(call, 0)

    def _count_sent(self) -> None:
        for call in list(self._sending.values()):
            left = self._http.queued_body_size(call.number) + self._rest.of(call.number)
            if not left and self._full_since is None:
                del self._sending[call.number]
            self._left(call, left)

    def _left(self, call: GrpcCall, left: int) -> None:
        """So many bytes of its messages are here."""
        while call.out and call.out_bytes - call.out[0] >= left:
            call.out_bytes -= call.out.popleft()
            if call.handler is not None:
                call.handler.sent()
        if call.finished and call.number not in self._sending:
            self._ended(call)
        else:
            self.count(call)

    def _ended(self, call: GrpcCall) -> None:
        """Its answer is on its way. What its client still sends is not wanted."""
        self._forget(call)
        if not call.half_closed:
            with contextlib.suppress(NGH2Error):
                self._http.reset_stream(call.number, 0)

    def _cancel(self, call: GrpcCall) -> None:
        """Nobody waits for an answer."""
        handler = call.handler
        self._forget(call)
        if handler is not None:
            handler.gone()

    def _forget(self, call: GrpcCall) -> None:
        self._calls.pop(call.number, None)
        self._sending.pop(call.number, None)
        if self._rest.nbytes:
            self._rest.forget(call.number)
        call.buffer = bytearray()
        call.out_bytes = 0
        call.close()
        self.count(call)
        if call.unacknowledged:
            self._acknowledge(call.unacknowledged, call.number)
            call.unacknowledged = 0
        if self._withheld:
            self._withheld = False
            for each in list(self._calls.values()):
                self.look_later(each)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.server.loop.create_task(work)

    def look_later(self, call: GrpcCall) -> None:
        if not self._to_look:
            self.server.turns.add(self.peer, self._look_on)
        self._to_look[call.number] = call

    @or_abort
    def _look_on(self) -> None:
        """A turn for calls whose messages wait, those first that have waited for the longest, and one at least."""
        waiting, self._to_look = list(self._to_look.values()), {}
        if not waiting:
            return  # the connection has ended
        self.look(waiting[0])
        for call in waiting[1:]:
            if self.server.turns.over():
                self.look_later(call)
            else:
                self.look(call)

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self.server.loop.call_soon(self._flush_planned)

    @or_abort
    def _flush_planned(self) -> None:
        self._planned = False
        self._flush()
        self._hold()

    # Accounts

    def count(self, call: GrpcCall) -> None:
        kept = call.handler.kept_bytes if call.handler is not None else 0
        nbytes = len(call.buffer) + kept + call.out_bytes + call.waiting_bytes
        self._bytes += nbytes - call.counted
        call.counted = nbytes
        if self._here() != self._held:
            self._plan()

    def _here(self) -> int:
        """Bytes of its calls, and those that they take by their number; of a header that is not whole."""
        held = self._bytes if self._header_since is None else self._bytes + HEADER_COST
        calls = len(self._calls)
        return held if calls <= limits.FREE_CALLS else held + CALL_BYTES * (calls - limits.FREE_CALLS)

    def _hold(self) -> None:
        """Tells what is held here for the client's sake."""
        if self._transport is None:
            return
        held = self._here()
        if self._full_since is not None:
            held += self._transport.get_write_buffer_size()
        if held != self._held:
            self._held = held
            self.server.holdings.hold(self, held)

    def _user(self) -> int | None:
        """The client at the other end."""
        return None if self._transport is None else peers.of_transport(self._transport)


ACTS: dict[type, Callable[[GrpcConnection, Any], None]] = {
    RequestReceived: GrpcConnection._requested,
    DataReceived: GrpcConnection._received,
    TrailersReceived: GrpcConnection._trailers,
    StreamReset: GrpcConnection._over,
    StreamClosed: GrpcConnection._over,
}


def _nobody() -> None:
    return None
