"""Finds by trial the highest rate at which a service still meets its SLOs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 0.99  # of all requests within their SLO, the usual figure of the field


def highest(holds: Callable[[float], bool], *, start: float = 1.0, steps: int = 7, limit: float = 1e6) -> float:
    """The largest multiplier found for which ``holds``, 0.0 if none down to start / 1000.

    Doubles or halves from ``start`` until the edge is enclosed, then halves the interval ``steps`` times: the result is
    within 2**-steps of the edge if there is one edge only.
    """
    low, high = 0.0, start
    while high < limit and holds(high):
        low, high = high, 2 * high
    if low == 0.0:
        low = start / 2
        while not holds(low):
            high, low = low, low / 2
            if low < start / 1000:
                return 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def highest_below(holds: Callable[[float], bool], limit: float, *, step: float = 0.97, steps: int = 4) -> float:
    """The same from ``limit`` downwards, for what may fail at a rate and hold at a higher one, as a heuristic's plans.

    Tries limit, limit x step, ... down to limit / 1000, then halves the last interval ``steps`` times. 0.0 if nothing
    holds.
    """
    high = low = limit
    while not holds(low):
        high, low = low, low * step
        if low < limit / 1000:
            return 0.0
    for _ in range(steps if low < high else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
