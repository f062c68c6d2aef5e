"""HTTP/1.1 for a load generator: requests are bytes that are ready, replies are counted, connections stay open.

A request takes an idle connection, else a new one; at the limit it waits, and its latency still counts from when it was
due. A connection carries one request at a time, as in users' clients.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools
import msgspec

from gemlet.config.printable import printable
from gemlet.decoding import from_json
from gemlet.load.job import LoadError

if TYPE_CHECKING:
    from gemlet.load.job import Address

# When it was written, when the reply was complete (seconds of time.monotonic()), and why there is no answer, or None.
Done = Callable[[float, float, "str | None"], None]
READY = 8  # connections opened before the first request is due
REASON_BYTES = 4096
REASON_LETTERS = 200


class _Connection(asyncio.Protocol):
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None
        self._sent = 0.0
        self._body = b""

    def send(self, message: bytes, done: Done) -> None:
        assert self._transport is not None
        self._done = done
        self._body = b""
        self._transport.write(message)
        self._sent = time.monotonic()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has its methods but is not a subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(shortened(f"connection lost: {exc}") if exc else "connection closed by the server")
        self._client.lost(self)

    # httptools' side

    def on_body(self, body: bytes) -> None:
        if len(self._body) < REASON_BYTES and self._parser.get_status_code() != 200:
            self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._finish(None if status == 200 else reason(status, self._body))
        if self._parser.should_keep_alive():
            self._client.free(self)
        else:
            self.close()

    def _finish(self, failure: str | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._sent, time.monotonic(), failure)


class HttpClient:
    """Requests to one address over at most ``limit`` connections. ``waited``: requests that found none free."""

    def __init__(self, address: Address, limit: int) -> None:
        self._address = address
        self._limit = limit
        self._ssl = ssl.create_default_context() if address.secure else None
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._queue: deque[tuple[bytes, Done]] = deque()
        self.waited = 0

    async def open(self) -> None:
        """Raises LoadError if there is no server."""
        try:
            for _ in range(min(READY, self._limit)):
                self.free(await self._connect())
        except OSError as error:
            raise LoadError(f"no server at {self._address}: {error.strerror or error}") from None

    def send(self, message: bytes, done: Done) -> None:
        if self._idle:
            self._idle.pop().send(message, done)
            return
        self._queue.append((message, done))
        if len(self._all) + len(self._opening) < self._limit:
            self._open_one()
        else:
            self.waited += 1

    async def close(self) -> None:
        self._queue.clear()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._all):
            connection.close()
        await asyncio.sleep(0)

    def free(self, connection: _Connection) -> None:
        """The connection has nothing to do."""
        if self._queue:
            connection.send(*self._queue.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._queue and not self._opening:
            self._open_one()

    def _open_one(self) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_one())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _serve_one(self) -> None:
        try:
            self.free(await self._connect())
        except OSError as error:
            if self._queue:
                now = time.monotonic()
                self._queue.popleft()[1](now, now, f"cannot connect: {error.strerror or error}")

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self), self._address.host, self._address.port, ssl=self._ssl
        )
        self._all.add(connection)
        return connection


def reason(status: int, body: bytes) -> str:
    """Why the server refused: its status and its words, without numbers that differ from reply to reply."""
    try:
        message = from_json(body, dict[str, object]).get("error", "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = body.decode(errors="replace")
    return f"{status} {shortened(str(message))}".strip()


def shortened(message: str) -> str:
    """One line whose numbers are #: 'waited 12.3 ms' and 'waited 14.1 ms' are one reason, not two."""
    plain = printable(re.sub(r"\d+(\.\d+)?", "#", " ".join(message.split())))
    return plain if len(plain) <= REASON_LETTERS else f"{plain[: REASON_LETTERS - 3]}..."
