"""Several streams kept busy at the same time: how long each takes for one launch.

One thread feeds them all and never waits for one alone. Times are between events of the same stream, so they include
what the stream's SMs waited for, and nothing of the host as long as each stream has something ahead of it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AHEAD_MS = 3.0  # of work that a stream has waiting; more than the host may be late
LEAST = 8  # launches that count


@dataclass(slots=True)
class Load:
    """What one stream does again and again. ``about_ms``: how long it takes, roughly."""

    stream: torch.cuda.Stream
    launch: Callable[[], None]
    about_ms: float
    events: list[torch.cuda.Event] = field(default_factory=list)
    waiting: deque[torch.cuda.Event] = field(default_factory=deque)

    @property
    def depth(self) -> int:
        return max(2, min(64, round(AHEAD_MS / max(self.about_ms, 1e-3)) + 1))

    def feed(self) -> None:
        """Submits as much as is ahead too little."""
        while self.waiting and self.waiting[0].query():
            self.waiting.popleft()
        while len(self.waiting) < self.depth:
            self.launch()
            event = torch.cuda.Event(enable_timing=True)
            event.record(self.stream)
            self.waiting.append(event)
            self.events.append(event)


def milliseconds(loads: Sequence[Load], seconds: float = 0.06, longest: float = 1.0) -> list[float]:
    """The median time of one launch of each, while all run. After ``longest`` it takes the results so far."""
    for load in loads:
        load.events.clear()
        load.waiting.clear()
    longest = max(longest, 0.006 * max(load.about_ms for load in loads))  # six launches of the slowest
    begin = time.monotonic()
    while True:
        for load in loads:
            load.feed()
        spent = time.monotonic() - begin
        done = min(len(load.events) - len(load.waiting) - load.depth for load in loads)
        if (spent > seconds and done >= LEAST) or spent > longest:
            break
    last = [len(load.events) - len(load.waiting) for load in loads]  # later ones may have run alone
    for load in loads:
        load.stream.synchronize()
    return [_median(load, upto) for load, upto in zip(loads, last, strict=True)]


def _median(load: Load, upto: int) -> float:
    first = min(load.depth, max(0, upto - 3))  # earlier ones may have begun before the others did
    counted = load.events[first:upto]
    if len(counted) < 2:
        counted = load.events  # at least two: those that were ahead
    gaps: list[float] = [a.elapsed_time(b) for a, b in pairwise(counted)]
    return median(gaps)
