"""By how much batches are slower than expected, at worst: a quantile of the last ones. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

QUANTILE = 0.95  # of batches that are not slower than expected by more than the margin
BATCHES = 64  # the last ones, which the quantile is of


class Margin:
    """Milliseconds, never negative; 0 before anything was seen."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, excess: float) -> None:
        """A batch took so many milliseconds more than expected, or less where it is negative."""
        if len(self._newest) == BATCHES:
            del self._ordered[bisect_left(self._ordered, self._newest.popleft())]
        self._newest.append(excess)
        insort(self._ordered, excess)

    @property
    def ms(self) -> float:
        if not self._ordered:
            return 0.0
        return max(0.0, self._ordered[ceil(QUANTILE * len(self._ordered)) - 1])
