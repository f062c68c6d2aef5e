"""What the webhook keeps for clients, of whom every pod may be one: connections, and reviews that are on their way.

Where there is too much of either, what goes is what has been there for the longest. The apiserver's own review comes
whole within milliseconds, and it makes another connection where an idle one has gone.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gemlet.serve.server.frontend.handshakes import Handshakes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

MOST_CONNECTIONS = 64  # each takes 270 KiB, by TLS
MAX_REVIEW_BYTES = 8 * 1024 * 1024  # the apiserver stops at 3 MiB an object
MOST_BYTES = 4 * MAX_REVIEW_BYTES
MOST_PARTS = 250_000  # of JSON in a review, each of which takes up to 130 bytes; a pod of 10 KB has 500
MOST_CHARACTERS = 256 * 1024  # of a text: of all annotations together, for Kubernetes; of a variable 128 KiB, for Linux
REVIEW_SECONDS = 10.0
END_SECONDS = 1.0  # for a client to take the end of TLS


def runner(app: web.Application) -> web.AppRunner:
    """What is compressed stays so, and is no review: it would be 1000 times what its length says."""
    return web.AppRunner(app, access_log=None, auto_decompress=False)


def listen(server: web.Server, address: str, port: int, tls: ssl.SSLContext) -> Handshakes:
    """Raises OSError if the port is taken."""

    def connection() -> asyncio.Protocol:
        there = server.connections  # the oldest first
        for each in there[: max(0, len(there) - MOST_CONNECTIONS + 1)]:
            if each.transport is not None:
                each.transport.abort()
        return server()

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=1024)
    return Handshakes([listening], tls, connection, MOST_CONNECTIONS, end_s=END_SECONDS)


class Reviews:
    """Those that are on their way."""

    def __init__(self) -> None:
        self._coming: dict[asyncio.Task[Any], int] = {}  # bytes that each may have, the oldest first

    async def body(self, request: web.Request) -> bytes:
        """Raises HTTPException; the connection ends where others need the room."""
        task = asyncio.current_task()
        assert task is not None
        length = request.content_length
        self._coming[task] = MAX_REVIEW_BYTES if length is None else min(length, MAX_REVIEW_BYTES)
        while sum(self._coming.values()) > MOST_BYTES:
            oldest = next(iter(self._coming))
            del self._coming[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the review did not come within {REVIEW_SECONDS:g} s\n") from None
        finally:
            self._coming.pop(task, None)
        # Empty lists alone would take 30 times their text, more than the chart gives the webhook, and seconds.
        if sum(map(body.count, (b",", b"[", b"{"))) > MOST_PARTS:
            raise web.HTTPRequestEntityTooLarge(MAX_REVIEW_BYTES, len(body), text="a review has too many parts\n")
        return body


def check_texts(request: Mapping[str, Any]) -> None:
    """Raises ValueError for a text that no pod can have: a refusal quotes some, and takes four bytes a character for
    each copy that it makes."""
    left: list[Any] = [request]
    while left:
        value = left.pop()
        if isinstance(value, str):
            if len(value) > MOST_CHARACTERS:
                raise ValueError(f"a text has more than {MOST_CHARACTERS} characters")
        elif isinstance(value, dict):
            left += value
            left += value.values()
        elif isinstance(value, list):
            left += value
