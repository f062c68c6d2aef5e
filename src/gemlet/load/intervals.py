"""What became of the requests of each second, or of each part of a run that long: pure, from a recording."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from gemlet.load.recording import ANSWERED, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Requests that were due from second ``at`` of the run on. p99_ms: of the answers; None where there is none."""

    at: float
    requests: int
    answered: int
    in_time: int
    p99_ms: float | None


def cut(recording: Recording, every_s: float, seconds: float, *, slo_ms: float | None) -> tuple[Interval, ...]:
    """The whole run of ``seconds`` in parts of ``every_s``, also those in which nothing was due."""
    due, done = np.array(recording.due), np.array(recording.done)
    answered = np.array(recording.ends) == ANSWERED
    place = (due / every_s).astype(int)
    order = np.argsort(place, kind="stable")
    count = max(ceil(seconds / every_s - 1e-9), 1)
    bounds = np.searchsorted(place[order], np.arange(count + 1))
    found = []
    for number in range(count):
        mine = order[bounds[number] : bounds[number + 1]]
        mine_answered = mine[answered[mine]]
        latency = np.sort(1000 * (done[mine_answered] - due[mine_answered]))
        found.append(
            Interval(
                at=number * every_s,
                requests=len(mine),
                answered=len(latency),
                in_time=len(latency) if slo_ms is None else int((latency <= slo_ms).sum()),
                p99_ms=nearest_rank(latency, 99) if len(latency) else None,
            )
        )
    return tuple(found)


def nearest_rank(ordered: np.ndarray, rank: int) -> float:
    """The percentile ``rank`` of numbers in ascending order, at least one: a number that is among them."""
    return float(ordered[max(0, -(-rank * len(ordered) // 100) - 1)])
