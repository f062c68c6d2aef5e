"""The virtual clock, and what happens when."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any

from gemlet._native import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.simulate.client import Client


# So many events at one moment are no burst: programs and arbiter answer each other without end.
MOST_AT_ONCE = 200_000


class Timeline:
    """Events in the order of their times, then in that in which they were planned. ``now`` in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0
        self._at_once = 0
        self._order = itertools.count()
        self._events: list[tuple[int, int, Client | None, Any]] = []

    def at(self, time: int, do: Callable[[], None]) -> None:
        """``do`` at that time."""
        heapq.heappush(self._events, (max(time, self.now), next(self._order), None, do))

    def wake(self, time: int, client: Client) -> None:
        """Wakes the client, unless its plans change before."""
        heapq.heappush(self._events, (max(time, self.now), next(self._order), client, client.version))

    def next_at(self) -> int:
        """When the next event is; NEVER if there is none."""
        events = self._events
        while events and events[0][2] is not None and events[0][2].version != events[0][3]:
            heapq.heappop(events)
        return events[0][0] if events else NEVER

    def step(self) -> None:
        """Lets the next event happen. Raises `RuntimeError` if time stands still."""
        before = self.now
        self.now, _, client, what = heapq.heappop(self._events)
        self._at_once = self._at_once + 1 if self.now == before else 0
        if self._at_once > MOST_AT_ONCE:
            raise RuntimeError(f"virtual time stands still at {self.now} ns: {MOST_AT_ONCE} events at this moment")
        if client is not None:
            client.wake(self.now)
        else:
            what()
