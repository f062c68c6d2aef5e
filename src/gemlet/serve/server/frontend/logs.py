"""The last lines of the log, and those to come, over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from gemlet.daemon.logs import PrintableFormatter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEPT = 1000
MAX_FOLLOWERS = 32  # a further one takes the place of the first
MAX_LINES_BEHIND = 10_000  # lines a slow reader may be behind before it loses some


class LogTail(logging.Handler):
    """Keeps lines and hands them on. Log calls come from the loop's thread and from others."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._readers: dict[asyncio.Queue[str | None], None] = {}  # the first that came first
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on readers in this loop get new lines."""
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self._lines.append(line)
        if self._readers and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_on, line)

    def last(self, count: int) -> list[str]:
        """The last ``count`` lines."""
        return list(self._lines)[-count:] if count > 0 else []

    async def follow(self) -> AsyncIterator[str]:
        """Lines as they come, until end_followers(), or until MAX_FOLLOWERS others came."""
        if len(self._readers) >= MAX_FOLLOWERS:
            self._end(next(iter(self._readers)))
        queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_LINES_BEHIND)
        self._readers[queue] = None
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            self._readers.pop(queue, None)

    def end_followers(self) -> None:
        """Lets every follow() end."""
        for queue in list(self._readers):
            self._end(queue)

    def _end(self, queue: asyncio.Queue[str | None]) -> None:
        del self._readers[queue]
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)

    def _hand_on(self, line: str) -> None:
        for queue in self._readers:
            if not queue.full():
                queue.put_nowait(line)
