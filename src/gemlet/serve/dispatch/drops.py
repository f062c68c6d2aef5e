"""What the dispatcher has dropped is refused, some of it in each turn of the event loop: thousands may be late at the
same moment."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gemlet.serve.dispatch.dispatcher import Drop

TOLD = 50  # requests that are refused in a turn of the loop, some milliseconds


class Drops:
    """Those that are not refused yet. ``refuse`` is called once for each."""

    def __init__(self, refuse: Callable[[Drop], None]) -> None:
        self._refuse = refuse
        self._waiting: deque[Drop] = deque()
        self._telling = False

    def add(self, drops: Iterable[Drop]) -> None:
        """Refuses some of them now, the others in the next turns."""
        self._waiting += drops
        if self._waiting and not self._telling:
            self._telling = True
            self._tell_some()

    def refuse_all(self) -> None:
        """There are no more turns."""
        while self._waiting:
            self._refuse(self._waiting.popleft())

    def _tell_some(self) -> None:
        try:
            for _ in range(min(TOLD, len(self._waiting))):
                self._refuse(self._waiting.popleft())
        finally:
            self._telling = bool(self._waiting)
            if self._telling:
                asyncio.get_running_loop().call_soon(self._tell_some)
