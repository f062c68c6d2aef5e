"""How often to repeat a measurement, and the result of the repetitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median, pstdev

WARM_UP = 2  # the first ones find cold caches and clocks
LEAST, MOST = 7, 200


@dataclass(slots=True)
class Samples:
    """Milliseconds of the same thing, one after the other.

    Enough is when the middle half of the samples spans less than ``precision`` of the median times the root of their
    number, which is when the median is known to about that; or when ``seconds`` or MOST samples are used up.
    """

    seconds: float = 0.25
    precision: float = 0.01
    values: list[float] = field(default_factory=list)
    skipped: int = 0
    spent_ms: float = 0.0

    def add(self, ms: float) -> None:
        self.spent_ms += ms
        if self.skipped < WARM_UP:
            self.skipped += 1
        else:
            self.values.append(ms)

    @property
    def enough(self) -> bool:
        count = len(self.values)
        if count < LEAST:
            return count >= 3 and self.spent_ms > 4000 * self.seconds
        if count >= MOST or self.spent_ms > 1000 * self.seconds:
            return True
        ordered = sorted(self.values)
        middle = ordered[(3 * count) // 4] - ordered[count // 4]
        return middle <= self.precision * self.median * sqrt(count)

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def variation(self) -> float:
        """Standard deviation over mean, without the slowest hundredth: those are the host's pauses."""
        kept = sorted(self.values)[: max(1, len(self.values) - len(self.values) // 100)]
        return pstdev(kept) / fmean(kept)
