"""What one program did in one window: units over time, requests, checksums of answers. Pure."""

from __future__ import annotations

import bisect
import json
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.windows import starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RATE_STEP = 0.5  # seconds: pace over a window, in the results


@dataclass(frozen=True)
class Request:
    arrived: float  # seconds since the start
    ended: float
    ttft_ms: float  # from arrival
    prefill_ms: float
    token_ms: tuple[float, ...]

    @property
    def per_token_ms(self) -> float:
        """Time per token after the first."""
        return statistics.fmean(self.token_ms)

    @property
    def served_s(self) -> float:
        """How long it was worked on."""
        return (self.prefill_ms + sum(self.token_ms)) / 1000


@dataclass
class Work:
    """``times`` and ``done``: seconds since the start, and units complete by then. ``seconds``: the window's length."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, lines: Iterable[str], seconds: float) -> Work:
        """From what a program of bench/programs says after a window. Raises ValueError if it is not whole."""
        work = cls(seconds)
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if "end" in said:
                work.digests = said["digests"]
                return work
            at = said["t"] / 1e9
            work.times.append(at)
            work.done.append(float(said["done"]))
            if "phase" in said:
                work.phases.append(said["phase"])
            if "ttft_ms" in said:
                times = (said["ttft_ms"], said["prefill_ms"], tuple(said["token_ms"]))
                work.requests.append(Request(said["arrived"] / 1e9, at, *times))
        raise ValueError("the report of a window has no end")

    def until(self, t: float) -> float:
        """Units complete at ``t``. The unit under way counts in part, as if it were worked on evenly."""
        i = bisect.bisect_right(self.times, t)
        if i == len(self.times):
            return self.done[-1] if self.done else 0.0
        before, since = (self.done[i - 1], self.times[i - 1]) if i else (0.0, 0.0)
        return before + (self.done[i] - before) * (t - since) / (self.times[i] - since)

    def rate(self, begin: float, end: float) -> float:
        """Units a second in [begin, end)."""
        return (self.until(end) - self.until(begin)) / (end - begin)

    def worst_second(self, begin: float, end: float) -> float:
        """Units a second in the slowest second."""
        if end - begin < 1.0:
            return self.rate(begin, end)
        return min(self.rate(t, t + 1.0) for t in starts(begin, end))

    def pace(self) -> list[float]:
        """Units a second in each half of a second, to see the course of a run."""
        return [round(self.rate(t, t + RATE_STEP), 2) for t in starts(0.0, self.seconds, RATE_STEP, RATE_STEP)]

    def busy(self, begin: float = 0.0, end: float | None = None) -> float:
        """The part of [begin, end) with a request under way; of the whole window if neither is given."""
        last = self.seconds if end is None else end
        spans = [(max(begin, r.ended - r.served_s), min(last, r.ended)) for r in self.requests]
        return sum(max(0.0, until - since) for since, until in spans) / (last - begin)


def identical(digests: Sequence[str], reference: Sequence[str]) -> bool:
    """Whether all answers that both gave are the same. Windows may differ in how far they came."""
    both = min(len(digests), len(reference))
    return list(digests[:both]) == list(reference[:both])


SETTLED = 0.2  # seconds of a window that holds a promise


def slowest(work: Work, begin: float, end: float) -> float:
    """Units a second in the slowest window of the length that ``settled_within`` looks at; 0 if none fits."""
    return min((work.rate(t, t + SETTLED) for t in starts(begin, end, SETTLED, 0.01)), default=0.0)


def settled_within(
    work: Work, promise: float, begin: float, end: float, *, window: float = SETTLED, step: float = 0.01
) -> float | None:
    """Seconds after ``begin`` from which every window up to ``end`` has at least ``promise`` units a second.

    0.0: it held at once. None: it never did.
    """
    since: float | None = None
    for t in starts(begin, end, window, step):
        if work.rate(t, t + window) < promise:
            since = None
        elif since is None:
            since = t
    return None if since is None else since - begin
