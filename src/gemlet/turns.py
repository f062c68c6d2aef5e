"""The event loop's time for what clients send without end: all of them together have a little of it in each turn of the
loop, one peer after another, and those who send little at a time wait for none of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TURN_S = 0.0007  # of each turn of the loop
LEAST_S = 1e-6  # that a clock tells apart


class Turns:
    """Work that is divided into pieces. What is asked for in a turn of the loop goes on in the next one at best."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by peer, the next one first
        self._until: float | None = None  # loop time at which the time of this turn is over; None: none was asked for
        self._planned = False

    def add(self, peer: str, go_on: Callable[[], None]) -> None:
        """Calls ``go_on``, for one piece at least, when it is the peer's turn, and those who came before have had
        theirs."""
        self._waiting.setdefault(peer, deque()).append(go_on)
        self._plan()

    def over(self) -> bool:
        """Whether others have their turn now: to be asked before each piece. Where several wait, after each: so those
        who need few do not wait for those who need many."""
        return bool(self._waiting) or self._time_is_over()

    def _time_is_over(self) -> bool:
        now = self._loop.time()
        if self._until is None:
            self._until = now + TURN_S
            self._plan()
        return now >= self._until

    def end(self) -> None:
        """The time of this turn is over: what was begun in it takes its time later."""
        self._until = self._loop.time()
        self._plan()

    @staticmethod
    def fitting(nbytes: int, seconds: float) -> int:
        """How many bytes are a turn's work, if so many took this long."""
        return int(nbytes * TURN_S / max(seconds, LEAST_S))

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._planned = False
        self._until = self._loop.time() + TURN_S
        for _ in range(sum(map(len, self._waiting.values()))):
            peer = next(iter(self._waiting))
            queue = self._waiting.pop(peer)
            go_on = queue.popleft()
            if queue:
                self._waiting[peer] = queue  # behind the other peers
            go_on()
            if self._time_is_over():
                break
        if self._waiting:
            self._plan()
        else:
            self._until = None
