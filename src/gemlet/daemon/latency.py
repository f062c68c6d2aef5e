"""How long requests of the class latency take: counts by duration, and what can be said of them. Pure.

The native server counts (native/server/latencies.hpp); a test compares its bounds with these.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STEPS = (10, 12, 14, 17, 20, 24, 29, 35, 42, 50, 65, 80)
BOUNDS_NS = tuple(step * 1000 * 10**decade for decade in range(7) for step in STEPS)  # one more count: longer
# The buckets of the document, 100 us to 10 s by 1, 2 and 5.
SHOWN = tuple(n for n, bound in enumerate(BOUNDS_NS) if 10**5 <= bound <= 10**10 and STEPS[n % 12] in {10, 20, 50})
WINDOW_NS = 60_000_000_000
LEAST_NS = 1_000_000_000  # between counts that are kept

Counts = dict[int, int]  # by the number of the bound


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Requests since the group exists, in seconds; one lasts from its first demand for the device until it is done.

    ``p50_s`` and ``p99_s``: of the last minute, None without requests in it. ``buckets``: how many took no longer than
    each time.
    """

    requests: int
    sum_s: float
    p50_s: float | None
    p99_s: float | None
    buckets: tuple[tuple[float, int], ...]


def quantile(counts: Mapping[int, int], part: float) -> float | None:
    """The duration, in seconds, that ``part`` of the requests does not pass; None without any. Exact to a fifth."""
    total = sum(counts.values())
    if total == 0:
        return None
    left = part * total
    for number in sorted(counts):
        count = counts[number]
        if left <= count:
            break
        left -= count
    low = BOUNDS_NS[number - 1] if number else 0
    high = BOUNDS_NS[number] if number < len(BOUNDS_NS) else low
    return (low + (high - low) * max(left, 0.0) / count) / 1e9


def difference(now: Mapping[int, int], then: Mapping[int, int]) -> Counts:
    """What was counted in between; all of it where the counts fell: the group is another one."""
    if any(now.get(number, 0) < count for number, count in then.items()):
        then = {}
    return {number: count - then.get(number, 0) for number, count in now.items() if count > then.get(number, 0)}


class Recent:
    """Counts of one group of the last minute."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Counts]] = deque()

    def add(self, now_ns: int, counts: Iterable[tuple[int, int]]) -> None:
        """Keeps them, once a second."""
        if self._kept and now_ns < self._kept[-1][0]:  # the clock is another one: what was before it stays so
            back = self._kept[-1][0] - now_ns
            self._kept = deque((at - back, kept) for at, kept in self._kept)
        if self._kept and now_ns - self._kept[-1][0] < LEAST_NS:
            return
        self._kept.append((now_ns, dict(counts)))
        while len(self._kept) > 1 and now_ns - self._kept[1][0] >= WINDOW_NS:
            self._kept.popleft()

    def latency(self, counts: Iterable[tuple[int, int]], sum_ns: int) -> Latency | None:
        """What is known with these counts, the newest; None if there was never a request."""
        now = dict(counts)
        if not now:
            return None
        recent = difference(now, self._kept[0][1] if self._kept else {})
        return Latency(
            requests=sum(now.values()),
            sum_s=sum_ns / 1e9,
            p50_s=quantile(recent, 0.5),
            p99_s=quantile(recent, 0.99),
            buckets=tuple(
                (BOUNDS_NS[shown] / 1e9, sum(count for number, count in now.items() if number <= shown))
                for shown in SHOWN
            ),
        )
