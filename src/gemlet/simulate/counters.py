"""What a client counts and tells the arbiter, and how its amounts of work lie in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from gemlet.simulate.workload import Lie

UNSEEN = 1_000_000_000  # a program that was not seen to wait for this long is taken to wait whenever it has work
BIN = 10_000_000


class Bins:
    """An amount over time, in bins of BIN nanoseconds."""

    __slots__ = ("values",)

    def __init__(self, duration: int) -> None:
        self.values = [0.0] * (duration // BIN + 1)

    def add(self, start: int, end: int, amount: float) -> None:
        first, last = start // BIN, (end - 1) // BIN
        if first >= last:
            self.values[first] += amount
            return
        each = amount / (end - start)
        self.values[first] += each * ((first + 1) * BIN - start)
        for index in range(first + 1, last):
            self.values[index] += each * BIN
        self.values[last] += each * (end - last * BIN)


class Counters:
    """Looks at the queues while it holds the token, at moments that have nothing to do with what the program does."""

    __slots__ = ("_at_ease", "_chance", "_empty", "_lie", "_samples", "_waited_at", "poll", "since")

    def __init__(self, lie: Lie, chance: random.Random) -> None:
        self._lie = lie
        self._chance = chance
        self._samples = self._empty = self._at_ease = 0.0
        self._waited_at = -UNSEEN
        self.poll = 1
        self.since = 0  # it looks from then on

    def add(self, start: int, end: int, busy: float, *, waits: bool) -> None:
        """In [start, end) it had work for ``busy``, and its host waited for that or did not."""
        if end <= self.since:
            return
        span = end - max(start, self.since)
        busy = min(busy, span)
        if waits and busy > 0:
            self._waited_at = end
        self._samples += span / self.poll
        if busy < span:
            self._empty += int((span - busy) / self.poll + self._chance.random())
        if not waits and end - self._waited_at < UNSEEN:
            self._at_ease += busy / self.poll

    def tell(self, work: int, launches: int) -> tuple[int, int, int, int, int]:
        """Work, launches, samples, busy and awaited samples, as it says they are."""
        samples = int(self._samples)
        busy = max(0, samples - int(self._empty))
        awaited = max(0, busy - int(self._at_ease))
        if self._lie == "silent":
            return 0, 0, 0, 0, 0
        if self._lie == "boasts":
            return 3 * work, launches, samples, busy, awaited
        if self._lie == "awaited":
            return work, launches, samples, samples, samples
        if self._lie == "idle":
            return work, launches, samples, 0, 0
        return work, launches, samples, busy, awaited
