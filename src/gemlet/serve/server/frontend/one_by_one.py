"""What a client asks beside inference is begun piece by piece, so that others have their turns between."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class OneByOne:
    """Of one client: begins at most one piece of work in each turn of the event loop, the first one at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._begun = False  # one, in this turn of the loop

    def add(self, begin: Callable[[], None]) -> None:
        """Calls ``begin`` when it is its turn."""
        if self._begun:
            self._waiting.append(begin)
        else:
            self._begun = True
            self._loop.call_soon(self._next)
            begin()

    def clear(self) -> None:
        """Begins nothing of what waits."""
        self._waiting.clear()

    def _next(self) -> None:
        self._begun = False
        if self._waiting:
            self.add(self._waiting.popleft())
