"""How much batches of one size differ in time: quantiles of measured ones, a factor for computed ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil, exp, log, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

STANDARD_P95 = 1.6449  # of the standard normal distribution


def nearest_rank(ordered: Sequence[float], part: float) -> float:
    """The smallest of the sorted numbers that at least ``part`` (0..1) of them do not pass; there must be a number."""
    return ordered[max(0, ceil(part * len(ordered) - 1e-9) - 1)]


class Recent:
    """The last ``limit`` numbers."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._newest: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, number: float) -> None:
        if len(self._newest) == self._limit:
            self.forget()
        self._newest.append(number)
        insort(self._ordered, number)

    def forget(self) -> None:
        """Takes out the oldest; there must be one."""
        del self._ordered[bisect_left(self._ordered, self._newest.popleft())]

    def quantile(self, part: float) -> float:
        """Nearest rank; there must be a number."""
        return nearest_rank(self._ordered, part)


def jitter(variation: float, chance: Random) -> float:
    """Of the profile's time: lognormal with mean 1 and this standard deviation, a profile's ``variation``."""
    if variation <= 0:
        return 1.0
    sigma = sqrt(log(1 + variation**2))
    return exp(chance.gauss(-sigma * sigma / 2, sigma))


def around_median(p95: float, chance: Random) -> float:
    """Lognormal with median 1 and this 95th percentile, which is what measurements tell; 1 or less: no variation."""
    return exp(chance.gauss(0.0, log(p95) / STANDARD_P95)) if p95 > 1 else 1.0
