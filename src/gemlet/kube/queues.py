"""Queues: those who want the same thing come one after the other, and keep nobody who wants another thing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Queues:
    """``at_once``: how many may have the same thing at a time."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._there: Counter[str] = Counter()  # who has each thing, or waits for it

    @asynccontextmanager
    async def of(self, thing: str) -> AsyncIterator[None]:
        """A place with ``thing``, of which nothing is kept but while somebody has it or waits for it."""
        room = self._rooms.setdefault(thing, asyncio.Semaphore(self._at_once))
        self._there[thing] += 1
        try:
            async with room:
                yield
        finally:
            self._there[thing] -= 1
            if not self._there[thing]:
                del self._there[thing], self._rooms[thing]

    def __len__(self) -> int:
        return len(self._there)
