"""The agent's few pages over HTTP: /metrics and /healthz. One request a connection, of GET only."""

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
READ_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Page:
    """An answer in plain text."""

    text: str
    status: int = 200


async def serve(pages: Mapping[str, Callable[[], Awaitable[Page]]], port: int) -> None:
    """Serves ``pages`` by their path until cancelled. Raises OSError if the port is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await _answer(pages, reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            logger.debug("http: %r", error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(answer, port=port)
    async with server:
        await server.serve_forever()


async def _answer(
    pages: Mapping[str, Callable[[], Awaitable[Page]]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    state = h11.Connection(h11.SERVER)
    while (event := state.next_event()) is h11.NEED_DATA:
        state.receive_data(await reader.read(READ_BYTES))
    if not isinstance(event, h11.Request):
        return
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
