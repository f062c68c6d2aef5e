"""One status document for all who ask at about the same time, and what is made of it.

To build one takes a few milliseconds of the event loop with hundreds of programs, and every user may ask without end.
So it is built once in `SECONDS`, and takes half of the daemon's time at most.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gemlet.daemon.status import Status

SECONDS = 0.1


class Document:
    """A status, with its texts, each of which is made once. ``event``: number of the last event before it."""

    def __init__(self, status: Status, *, event: int, metrics: Callable[[Status], str] | None) -> None:
        self.status = status
        self.event = event
        self._metrics = metrics

    @cached_property
    def json(self) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(self.status))

    @cached_property
    def metrics(self) -> str | None:
        """Prometheus' text format; None without prometheus-client."""
        return self._metrics(self.status) if self._metrics else None


class SharedStatus:
    """``prepare`` finds out what takes a moment, ``build`` makes the document at once; ``event``: number of the last
    event. A document is given for `SECONDS` to all requests, but to none that comes after a later event.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[], Awaitable[None]],
        build: Callable[[], Status],
        event: Callable[[], int],
        metrics: Callable[[Status], str] | None,
    ) -> None:
        self._prepare = prepare
        self._build = build
        self._event = event
        self._metrics = metrics
        self._building = asyncio.Lock()
        self._document: Document | None = None
        self._due = 0.0  # when the next one may be built, in the loop's time

    async def get(self, *, anew: bool = False) -> Document:
        """The document as of now, or of up to `SECONDS` ago if nothing has happened since. ``anew``: as of now."""
        loop = asyncio.get_running_loop()
        event = self._event()
        async with self._building:
            document, wait = self._document, self._due - loop.time()
            if document is not None and document.event >= event and not anew and wait > 0:
                return document
            await asyncio.sleep(max(0.0, wait))
            await self._prepare()
            began = loop.time()
            self._document = document = Document(self._build(), event=self._event(), metrics=self._metrics)
            took = loop.time() - began
            self._due = loop.time() + max(SECONDS, took)
            return document
