"""HTTP/1.1 over asyncio's streams, with h11 for the protocol: what the agent asks the apiserver, in little memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping

READ_BYTES = 65536
CLOSE_SECONDS = 1.0
# A server that is gone without a word, as a machine or a way to it that was lost, ends a connection within half a
# minute: who watches would hear nothing for minutes else, and nothing of what came meanwhile.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class HttpError(Exception):
    """The other side does not speak HTTP, or stopped in the middle. `stale`: before it had answered anything."""

    def __init__(self, message: str, *, stale: bool = False) -> None:
        super().__init__(message)
        self.stale = stale


class HttpConnection:
    """One connection to one server; one request at a time.

    ``patience``: seconds without a byte after which reading raises TimeoutError; None for ever.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host
        self.patience: float | None = None
        self._state = h11.Connection(h11.CLIENT)
        self._heard = False  # anything of the answer to the last request

    @classmethod
    async def open(cls, url: str, context: ssl.SSLContext | None) -> HttpConnection:
        """To the server of ``url``. Raises OSError, `ssl.SSLError` among them."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=(context or True) if secure else None)
        connection = writer.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            connection.setsockopt(level, option, value)
        return cls(reader, writer, parts.netloc)

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> h11.Response:
        """Sends a request and returns the beginning of its answer; `body` has the rest. Raises HttpError, OSError."""
        given = {"Host": self._host, "Accept": "application/json", **headers}
        if body is not None:
            given |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._heard = False
        try:
            # What cannot be said in HTTP is an error here, too, such as a token of half a file.
            events: list[h11.Event] = [h11.Request(method=method, target=target, headers=list(given.items()))]
            events += [h11.Data(data=body)] if body is not None else []
            events.append(h11.EndOfMessage())
            for event in events:
                self._writer.write(self._state.send(event) or b"")
            await self._writer.drain()
            while not isinstance(reply := await self._next(), h11.Response):
                pass  # informational
        except (ConnectionError, h11.ProtocolError) as error:
            # That the server has closed an idle connection is seen only now.
            raise HttpError(str(error), stale=not self._heard) from None
        return reply

    async def body(self) -> AsyncIterator[bytes]:
        """What follows the beginning of an answer, as it comes. Raises HttpError, OSError."""
        try:
            while not isinstance(event := await self._next(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif isinstance(event, h11.ConnectionClosed):
                    raise HttpError("closed in the middle of an answer")
        except h11.ProtocolError as error:
            raise HttpError(str(error)) from None

    def again(self) -> bool:
        """Whether another request can be made, now that the last is answered; it is prepared for one if so."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return not self._reader.at_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()

    async def _next(self) -> h11.Event:
        while True:
            event = self._state.next_event()
            if isinstance(event, h11.Event):
                return event
            async with asyncio.timeout(self.patience):
                data = await self._reader.read(READ_BYTES)
            self._heard = self._heard or bool(data)
            self._state.receive_data(data)
