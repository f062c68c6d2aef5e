"""The agent's few pages over HTTP: /metrics and /healthz. One request a connection, of GET only.

Every pod may reach them. Where there is no room for another connection, the one goes that has waited longest for its
request, or if none does, the one that has been answered for the longest: it may not be taking its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
CLOSE_SECONDS = 1.0  # for a client to take the rest of its answer
MOST_CONNECTIONS = 64
READ_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Page:
    """An answer in plain text."""

    text: str
    status: int = 200


def for_all(make: Callable[[], Awaitable[Page]], seconds: float) -> Callable[[], Awaitable[Page]]:
    """A page that is made once for all who ask for it while it is being made, and within ``seconds`` after that began:
    every pod may ask without end, and what it takes to make is not theirs."""
    made: asyncio.Future[Page] | None = None
    begun = 0.0

    async def page() -> Page:
        nonlocal made, begun
        now = asyncio.get_running_loop().time()
        if made is None or (made.done() and not 0 <= now - begun < seconds):
            made, begun = asyncio.ensure_future(make()), now
        return await asyncio.shield(made)

    return page


async def serve(pages: Mapping[str, Callable[[], Awaitable[Page]]], port: int) -> None:
    """Serves ``pages`` by their path until cancelled. Raises OSError if the port is taken."""

    connections: dict[asyncio.StreamWriter, None] = {}  # the oldest first
    waiting: dict[asyncio.StreamWriter, None] = {}  # whose requests are not there yet, those that wait longest first

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= MOST_CONNECTIONS:
            longest = next(iter(waiting or connections))
            connections.pop(longest, None)
            waiting.pop(longest, None)
            longest.transport.abort()
        connections[writer] = waiting[writer] = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await _answer(pages, reader, writer, lambda: waiting.pop(writer, None))
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            logger.debug("http: %r", error)
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await writer.wait_closed()
            writer.transport.abort()
            waiting.pop(writer, None)
            connections.pop(writer, None)

    server = await asyncio.start_server(answer, port=port)
    async with server:
        await server.serve_forever()


async def _answer(
    pages: Mapping[str, Callable[[], Awaitable[Page]]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    is_there: Callable[[], None],
) -> None:
    """``is_there`` is called with the request."""
    state = h11.Connection(h11.SERVER)
    while (event := state.next_event()) is h11.NEED_DATA:
        state.receive_data(await reader.read(READ_BYTES))
    if not isinstance(event, h11.Request):
        return
    is_there()
    page = pages.get(event.target.decode().partition("?")[0])
    if event.method != b"GET":
        made = Page("only GET\n", 405)
    elif page is None:
        made = Page("no such page\n", 404)
    else:
        made = await page()
    body = made.text.encode()
    headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), "Connection": "close"}
    for part in (
        h11.Response(status_code=made.status, headers=list(headers.items())),
        h11.Data(data=body),
        h11.EndOfMessage(),
    ):
        writer.write(state.send(part) or b"")
    await writer.drain()
