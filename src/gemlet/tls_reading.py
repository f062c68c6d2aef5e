"""How much a server takes at once of what a client sends by TLS.

Decryption of data is fast, but a client may send other records in its place, also before it has said who it is: new
keys (KeyUpdate) take a thousand times as long as data of their length. asyncio reads a quarter of a megabyte at a time,
which is one call of OpenSSL, and uvloop does so 32 times: seconds in which nobody else is served. Here a client has
little room, and more as long as what it sends is data. One that sends much more of other things ends: each may have an
answer, which is kept until the client reads it.

What answers the first message of a handshake takes a millisecond, and four with a key of 4096 bits, of which a client
needs none. So handshakes that go on take turns, and so does what thousands of clients send at the same moment.
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from gemlet.turns import Turns

LEAST = 512
MOST = 64 * 1024  # also what a connection keeps for reading
GROWS = 4
LOOK_BYTES = 20 * 1024  # after which the room is thought over: more than a record, which has no data before its end
OTHER_BYTES, OTHER_PART = 256 * 1024, 3  # that are no data: so many, and so many for each byte of data


class Reading(sslproto.SSLProtocol):
    """TLS of a connection to a server; ``done`` has the end of its handshake, whose ``turns`` are those of the peer.

    ``protocol`` makes what reads the data, after the handshake. Before that it would not hear of the end, and its
    parts, which know each other until then, would wait for Python's collector.
    """

    max_size = MOST
    _ssl_reading_paused: bool  # by asyncio, for what waits to be decrypted

    def __init__(
        self,
        tls: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        turns: Turns,
        peer: str,
        *,
        begin_s: float,
        end_s: float | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self._turns, self._peer = turns, peer
        self._counted = _Counted(protocol)
        self._room = LEAST
        self._received = 0
        self._looked = self._looked_data = 0  # bytes, and those of data, when the room was last thought over
        super().__init__(
            loop,
            self._counted,
            tls,
            self.done,
            server_side=True,
            ssl_handshake_timeout=begin_s,  # type: ignore[arg-type]  # typeshed knows whole seconds only
            ssl_shutdown_timeout=end_s,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)  # uvloop's is none
        super().connection_made(transport)

    def get_buffer(self, n: int) -> memoryview:
        return super().get_buffer(n)[: self._room if self._counted.reads else LEAST]

    def buffer_updated(self, nbytes: int) -> None:
        turns = self._turns
        if self.done.done() and turns.has_room():
            began = turns.clock()
            self._take(nbytes)
            turns.took(turns.clock() - began)
        else:
            self._below.pause_reading()
            turns.add(self._peer, lambda: self._take_in_turn(nbytes), small=self.done.done())

    def _take_in_turn(self, nbytes: int) -> None:
        if not self._below.is_closing():
            try:
                self._take(nbytes)
            except Exception:
                self._below.abort()  # it would be read no more, and nobody would know
                raise
            if not self._ssl_reading_paused:
                self._below.resume_reading()

    def _take(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self._received += nbytes
        received, data = self._received - self._looked, self._counted.nbytes - self._looked_data
        if received < LOOK_BYTES:
            return
        self._looked, self._looked_data = self._received, self._counted.nbytes
        self._room = min(MOST, GROWS * self._room) if 2 * data > received else LEAST
        if self._received - self._counted.nbytes > OTHER_BYTES + OTHER_PART * self._counted.nbytes:
            self._below.abort()


class _Counted(asyncio.Protocol):
    """A protocol, and how many bytes it has had. While it reads nothing, no more is kept than may be read at once."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self.nbytes = 0
        self._transport: asyncio.ReadTransport | None = None
        self._make = make

    @property
    def reads(self) -> bool:
        return self._transport is None or self._transport.is_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        transport.set_read_buffer_limits(LEAST)  # type: ignore[attr-defined]  # of TLS's transports
        self._protocol = protocol = self._make()
        self._receive = protocol.data_received
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # else both, and the buffers of TLS, a hundred kilobytes, wait for Python's collector
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.nbytes += len(data)
        self._receive(data)
