"""What the webhook keeps for clients, of whom every pod may be one: connections, and reviews that are on their way.

Where there is too much of either, what goes is what has been there for the longest. The apiserver's own review comes
whole within milliseconds, and it makes another connection where an idle one has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gemlet.daemon.logs import Limiter
from gemlet.tls_handshakes import Handshakes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

LINES_PER_MINUTE = 100  # of each kind, in the log
MOST_CONNECTIONS = 64  # each takes 270 KiB, by TLS
MAX_REVIEW_BYTES = 8 * 1024 * 1024  # the apiserver stops at 3 MiB an object
MOST_BYTES = 4 * MAX_REVIEW_BYTES
MOST_PARTS = 250_000  # of JSON in a review, each of which takes up to 130 bytes; a pod of 10 KB has 500
REVIEW_SECONDS = 10.0
ANSWER_SECONDS = 10.0
KERNEL_BYTES = PIECE_BYTES = 64 * 1024
UNTAKEN_BYTES = 16 * 1024  # of an answer, for which nobody waits
HANDSHAKE_SECONDS = 10.0
END_SECONDS = 1.0  # for a client to take the end of TLS


def runner(app: web.Application) -> web.AppRunner:
    """What is compressed stays so, and is no review: it would be 1000 times what its length says. What comes after an
    answer is not read."""
    return web.AppRunner(app, access_log=None, logger=logger, auto_decompress=False, lingering_time=0)


class FewLines(logging.Filter):
    """Lets so many lines of each kind pass: what is no HTTP, and no review, comes as often as somebody likes."""

    def __init__(self) -> None:
        super().__init__()
        self._limiter = Limiter(LINES_PER_MINUTE)

    def filter(self, record: logging.LogRecord) -> bool:
        passes, left_out = self._limiter.allow(record.msg, now=time.monotonic())
        if passes and left_out:
            record.msg = f"{record.msg} (after {left_out} of this kind that were left out)"
        return passes


def listen(server: web.Server, address: str | None, port: int, tls: ssl.SSLContext) -> Handshakes:
    """``address``: None for all that there are, of IPv6, too. Raises OSError if the port is taken."""

    made = itertools.count(1)

    def connection() -> asyncio.Protocol:
        if next(made) % MOST_CONNECTIONS == 0:
            # What has ended in an error waits in a cycle, with 64 KiB of TLS, and Python looks for
            # cycles by the number of objects only: two thousand connections that were opened and closed took 600 MB.
            gc.collect()
        there = server.connections  # the oldest first
        for each in there[: max(0, len(there) - MOST_CONNECTIONS + 1)]:
            if each.transport is not None:
                each.transport.abort()
        return server()

    both = address is None and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in (address or "") else socket.AF_INET
    listening = socket.create_server((address or "", port), family=family, backlog=1024, dualstack_ipv6=both)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)  # else the kernel keeps up to 4 MiB each
    return Handshakes([listening], tls, connection, MOST_CONNECTIONS, begin_s=HANDSHAKE_SECONDS, end_s=END_SECONDS)


class Reviews:
    """Those that are on their way, and their answers."""

    def __init__(self) -> None:
        self._there: dict[asyncio.Task[Any], int] = {}  # bytes that each may have, the oldest first

    @contextlib.contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Room for ``size`` bytes of the task that enters, which is cancelled where others need it. One at a time."""
        task = asyncio.current_task()
        assert task is not None
        self._there[task] = size
        while sum(self._there.values()) > MOST_BYTES:
            oldest = next(iter(self._there))
            del self._there[oldest]
            oldest.cancel()
        try:
            yield
        finally:
            self._there.pop(task, None)

    async def body(self, request: web.Request) -> bytes | web.Response:
        """Of a review, or what is to be answered to what is none. The connection ends where others need the room.

        No exceptions: those that answers are made of keep the frames that they came through, megabytes among them,
        until Python looks for cycles.
        """
        length = request.content_length
        if length is None:  # the apiserver says it; chunks of one byte each would take a processor
            refusal = web.Response(status=411, text="a review has a Content-Length\n")
            refusal.force_close()
            return refusal
        if length > MAX_REVIEW_BYTES:
            return _too_large(f"a review has at most {MAX_REVIEW_BYTES} bytes\n")
        read = bytearray()  # not by the request, which would keep it until its answer has been taken
        with self.held(length):
            try:
                async with asyncio.timeout(REVIEW_SECONDS):
                    while part := await request.content.readany():
                        read += part
            except TimeoutError:
                return web.Response(status=408, text=f"the review did not come within {REVIEW_SECONDS:g} s\n")
            except OSError:
                return web.Response(status=400, text="the connection has ended\n")
        # Empty lists alone would take 30 times their text, more than the chart gives the webhook, and seconds.
        if sum(map(read.count, (b",", b"[", b"{"))) > MOST_PARTS:
            return _too_large("a review has too many parts\n")
        return bytes(read)

    async def send(self, request: web.Request, reply: bytes) -> web.StreamResponse:
        """Answers ``request``, in the room that the answer was given; who does not take it loses the connection."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(reply)
        transport = request.transport
        if transport is None:
            return response  # the client has gone
        try:
            transport.set_write_buffer_limits(UNTAKEN_BYTES)
            async with asyncio.timeout(ANSWER_SECONDS):
                await response.prepare(request)
                for at in range(0, len(reply), PIECE_BYTES):  # of what is given to TLS at once it says nothing more
                    await response.write(reply[at : at + PIECE_BYTES])
                await response.write_eof()
        except BaseException as error:
            transport.abort()  # closing would wait for the rest to be taken
            if not isinstance(error, OSError):
                raise
        return response


def _too_large(text: str) -> web.Response:
    return web.Response(status=413, text=text)
