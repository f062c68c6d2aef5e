"""Completed work over time, and what windows over it say about shares. Pure.

A share is work completed in a window over what one client alone completes in that time (``rate``: seconds of work a
second).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WINDOW, STEP = 1.0, 0.05  # seconds: every promise is about windows of one second, looked at 50 ms apart


@dataclass
class Completed:
    """Entries (seconds since the scenario began, seconds of work completed until then), in order of time."""

    entries: list[tuple[float, float]] = field(default_factory=list)

    def until(self, t: float) -> float:
        """Seconds of work completed before or at ``t``."""
        i = bisect.bisect_right(self.entries, (t, float("inf")))
        return self.entries[i - 1][1] if i else 0.0

    def between(self, a: float, b: float) -> float:
        return self.until(b) - self.until(a)

    @property
    def total(self) -> float:
        return self.entries[-1][1] if self.entries else 0.0

    def gaps(self) -> list[tuple[float, float]]:
        """(length, begin) of the times between two entries, longest first."""
        return sorted(((b[0] - a[0], a[0]) for a, b in zip(self.entries, self.entries[1:], strict=False)), reverse=True)


def starts(begin: float, end: float, window: float = WINDOW, step: float = STEP) -> Iterator[float]:
    """Where windows within [begin, end] begin."""
    count = 0
    while (t := begin + count * step) + window <= end + 1e-9:
        yield t
        count += 1


@dataclass(frozen=True)
class Worst:
    """The window that is furthest from the promise: ``error`` is its share less the promise."""

    begin: float
    error: float


def worst_of(
    done: Completed, promise: float, rate: float, begin: float, end: float, window: float = WINDOW, step: float = STEP
) -> Worst:
    """Raises ValueError if no window fits in [begin, end]."""
    errors = ((done.between(t, t + window) / (window * rate) - promise, t) for t in starts(begin, end, window, step))
    error, at = max(errors, key=lambda found: abs(found[0]))
    return Worst(at, error)


def worst_window(
    done: Completed, promise: float, rate: float, begin: float, end: float, window: float = WINDOW, step: float = STEP
) -> float:
    """Largest distance from the promise over all windows in [begin, end]: share of device time, 0..1."""
    return abs(worst_of(done, promise, rate, begin, end, window, step).error)


def settled(
    done: Completed, promise: float, rate: float, change: float, end: float, *, window: float, tolerance: float
) -> float | None:
    """Seconds after ``change`` from which every window up to ``end`` is within ``tolerance`` of the promise.

    Windows begin 5 ms apart, the first at the change; 0.0: it held at once. None: it never did.
    """
    since = None
    for t in starts(change, end, window, 0.005):
        if abs(done.between(t, t + window) / (window * rate) - promise) > tolerance:
            since = None
        elif since is None:
            since = t
    return None if since is None else since - change


@dataclass(frozen=True)
class Line:
    slope: float
    height: float  # at time 0

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Least squares. Raises ValueError for fewer than two different times."""
        n = len(points)
        mean_x, mean_y = sum(x for x, _ in points) / max(n, 1), sum(y for _, y in points) / max(n, 1)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        if spread == 0:
            raise ValueError("a line needs two points in time")
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
        return cls(slope, mean_y - slope * mean_x)


def switching_point(done: Completed, before: tuple[float, float], after: tuple[float, float]) -> float:
    """When work began to grow at its new pace: where the lines through it before and after a change meet.

    Work grows in steps, one a turn, so no single window tells to a few milliseconds when a change took effect. Two
    lines through hundreds of steps do: the time at which they meet is the change's, plus the work that was done at the
    old pace after it (or less it, if the new pace was overdone at first) over the difference of the paces.

    ``before`` and ``after`` are spans of time in which the pace is steady. Raises ValueError if the paces are alike.
    """
    first, second = (Line.through(list(sampled(done, *span))) for span in (before, after))
    if abs(first.slope - second.slope) < 0.02 * max(abs(first.slope), abs(second.slope)):
        raise ValueError("the pace did not change")
    return (first.height - second.height) / (second.slope - first.slope)


def sampled(done: Completed, begin: float, end: float, step: float = 0.002) -> Iterator[tuple[float, float]]:
    """Work at fixed times, so that a long turn weighs as much as the pause after it."""
    yield from ((t, done.until(t)) for t in starts(begin, end, 0.0, step))


def share_line(
    done: Completed, rate: float, end: float, window: float = 0.1, step: float = 0.05
) -> list[tuple[float, float]]:
    """(middle of a window, share in it), for pictures."""
    return [
        (round(t + window / 2, 4), round(done.between(t, t + window) / (window * rate), 4))
        for t in starts(0.0, end, window, step)
    ]
