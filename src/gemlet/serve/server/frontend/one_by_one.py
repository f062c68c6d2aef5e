"""What clients ask beside inference is begun piece by piece, so that others have their turns between."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.turns import Turns


class OneByOne:
    """Of one client: begins at most one piece of work in each turn of the event loop, and ends the turn of all others
    with it; at once, if the turn is not over."""

    def __init__(self, turns: Turns) -> None:
        self.peer = ""
        self._turns = turns
        self._waiting: deque[Callable[[], None]] = deque()
        self._planned = False

    def add(self, begin: Callable[[], None]) -> None:
        """Calls ``begin`` when it is its turn."""
        if self._planned or self._turns.over():
            self._waiting.append(begin)
            self._plan()
        else:
            self._plan()
            begin()
            self._turns.end()

    def clear(self) -> None:
        """Begins nothing of what waits."""
        self._waiting.clear()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._turns.add(self.peer, self._next)

    def _next(self) -> None:
        self._planned = False
        if self._waiting:
            self._plan()
            self._waiting.popleft()()
            self._turns.end()
