"""One status document for all who ask at about the same time, and what is made of it.

With hundreds of programs it takes long to build one, and every user may ask without end. So it is built once in
`SECONDS`, takes half of the daemon's time at most, and others are answered between its steps.
"""

from __future__ import annotations

import asyncio
import time
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from gemlet.daemon.status import Status

SECONDS = 0.1
Built = TypeVar("Built")


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
    """``build`` makes the document; ``event``: number of the last event. A document is given for `SECONDS` to all
    requests, but to none that comes after a later event.
    """

    def __init__(
        self,
        *,
        build: Callable[[], Awaitable[Status]],
        event: Callable[[], int],
        metrics: Callable[[Status], str] | None,
    ) -> None:
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
            began, event = time.thread_time(), self._event()  # that others have the processor makes it no costlier
            self._document = document = Document(await self._build(), event=event, metrics=self._metrics)
            took = time.thread_time() - began
            self._due = loop.time() + max(SECONDS, took)
            return document


async def in_steps(steps: Generator[None, None, Built]) -> Built:
    """What ``steps`` returns; others have their turn in the event loop between two of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            built: Built = end.value
            return built
        await asyncio.sleep(0)
