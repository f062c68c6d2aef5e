"""Completed work over time, and how far it was from a promise in the worst second. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

WINDOW_SECONDS = 1.0


@dataclass(slots=True)
class Trace:
    """Cumulative completions at moments of CLOCK_MONOTONIC in ns, both rising."""

    times: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, time_ns: int, count: int) -> None:
        """Appends one report."""
        self.times.append(time_ns)
        self.counts.append(count)

    @property
    def first(self) -> int:
        """Time of the first report; 0 if there is none."""
        return self.times[0] if self.times else 0

    @property
    def last(self) -> int:
        """Time of the last report; 0 if there is none."""
        return self.times[-1] if self.times else 0

    def between(self, begin: int, end: int) -> Trace:
        """The part within two moments."""
        low, high = bisect_left(self.times, begin), bisect_left(self.times, end + 1)
        return Trace(self.times[low:high], self.counts[low:high])

    def count_at(self, time_ns: int) -> float:
        """Completions until ``time_ns``, between two reports by the straight line."""
        place = bisect_left(self.times, time_ns)
        if place == 0:
            return float(self.counts[0]) if self.counts else 0.0
        if place == len(self.times):
            return float(self.counts[-1])
        before, after = self.times[place - 1], self.times[place]
        part = (time_ns - before) / (after - before)
        return self.counts[place - 1] + part * (self.counts[place] - self.counts[place - 1])

    def rate(self, *, after: float = 0.0, last: float | None = None) -> float:
        """Completions per second: without the first ``after`` seconds, or of the ``last`` seconds; 0 if unknown."""
        if len(self.times) < 2:
            return 0.0
        begin = self.last - int(last * 1e9) if last is not None else self.first + int(after * 1e9)
        begin = max(begin, self.first)
        if begin >= self.last:
            return 0.0
        return (self.counts[-1] - self.count_at(begin)) * 1e9 / (self.last - begin)


def worst_error(trace: Trace, rate: float, promised: float, *, window: float = WINDOW_SECONDS) -> float:
    """Largest distance of the share from ``promised`` over every window of that many seconds that ends with a report.

    1.0 if the trace is shorter than a window: nothing was shown.
    """
    length = int(window * 1e9)
    errors = [
        abs((count - trace.count_at(time - length)) / (window * rate) - promised)
        for time, count in zip(trace.times, trace.counts, strict=True)
        if time - length >= trace.first
    ]
    return max(errors, default=1.0)
