"""Estimates from counts how fast the requests of a model come, how that rate changes, and how uneven it is. Pure.

Two exponential averages of the rate, a fast and a slow one. On a ramp each lags by its own time constant, so their
difference over the difference of the constants is the slope, and the rate some seconds ahead follows from it.

Unevenness is the coefficient of variation of the gaps between requests: for a renewal process the variance of a count
over its mean tends to its square. Differences of neighbouring counts give the variance, since they do not see a slow
change of the rate; single large ones, a step of the rate, are cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

FAST_S = 2.0
SLOW_S = 10.0
UNEVEN_S = 60.0
SURE = 3.0  # standard errors that make a difference
CUT = 4.0  # standard deviations beyond which a difference of counts is due to the rate, not to unevenness
LEAST_VARIATION = 1.0  # never count on less than Poisson's: even arrivals last until they do not


@dataclass(slots=True)
class Meter:
    """One model. ``fast`` and ``slow`` in requests/s; starts as if this rate and variation had been seen for ever."""

    fast: float
    slow: float
    dispersion: float  # variance over mean of a count
    last: float  # requests/s in the last interval
    _before: tuple[float, float] | None = None  # the interval before: its count, its seconds

    @classmethod
    def of(cls, rate: float, variation: float = 1.0) -> Meter:
        return cls(fast=rate, slow=rate, dispersion=variation**2, last=rate)

    def add(self, count: int, seconds: float) -> None:
        """Takes note that ``count`` requests came in ``seconds`` (above 0)."""
        rate = count / seconds
        self._learn_unevenness(count, seconds)
        self.fast += (1 - exp(-seconds / FAST_S)) * (rate - self.fast)
        self.slow += (1 - exp(-seconds / SLOW_S)) * (rate - self.slow)
        self.last = rate

    def jump(self, rate: float) -> None:
        """The rate is another one now: what was seen before does not count."""
        self.fast = self.slow = rate
        self._before = None

    @property
    def variation(self) -> float:
        return max(LEAST_VARIATION, sqrt(self.dispersion))

    @property
    def trend(self) -> float:
        """Requests/s more with each second; 0 unless the averages differ by more than chance explains."""
        if abs(self.fast - self.slow) <= SURE * self.error(FAST_S):
            return 0.0
        return (self.fast - self.slow) / (SLOW_S - FAST_S)

    def error(self, seconds: float) -> float:
        """Standard error of an average with this time constant; a count of 2 x seconds has the same."""
        return self.variation * sqrt(max(self.slow, self.fast, 1e-9) / (2 * seconds))

    def ahead(self, seconds: float) -> float:
        """The rate in this many seconds from now."""
        trend = self.trend
        return max(0.0, self.fast + trend * (FAST_S + seconds)) if trend else self.slow

    def _learn_unevenness(self, count: int, seconds: float) -> None:
        before, self._before = self._before, (count, seconds)
        if before is None:
            return
        mean = (self.slow * seconds + before[0]) / 2
        if mean < 1:
            return  # too few to tell
        square = (count - before[0] * seconds / before[1]) ** 2 / 2
        square = min(square, CUT**2 * max(1.0, self.dispersion) * mean)
        self.dispersion += (1 - exp(-seconds / UNEVEN_S)) * (square / mean - self.dispersion)
