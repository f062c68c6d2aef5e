"""Several models on one gpu-let, by turns: the condition of Nexus (SOSP 2019) for a shared duty cycle.

In a cycle of d ms each model has one batch, of what comes in a cycle: b_i = ceil(rate_i d). It holds if

    sum L_i(b_i) <= d                    the turns fit into the cycle
    d + L_i(b_i) <= SLO_i   for every i  a request that just missed its turn is still in time

With one model and d = L(b) this is 2 L(b) <= SLO.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Long cycles have large batches, which cost less for each request, so the longest that holds is taken.
ROUNDING = 1e-6  # requests and milliseconds
WHOLE = 16  # this many whole batches are tried, the largest first
STEPS = tuple(step / 24 for step in range(22, 1, -1))


class Turn(NamedTuple):
    """One model: milliseconds by batch on this gpu-let, neighbours included; requests/s; milliseconds."""

    row: Sequence[float]
    rate: float
    slo_ms: float
    slowdown: float = 1.0


class Cycle(NamedTuple):
    """duty_ms: length; batches and latencies (ms) by turn, in the order given."""

    duty_ms: float
    batches: tuple[int, ...]
    latencies: tuple[float, ...]

    @property
    def occupancy(self) -> float:
        return sum(self.latencies) / self.duty_ms


def fit(turns: Sequence[Turn]) -> Cycle | None:
    """The longest cycle tried in which all turns fit, or None. For at least one turn."""
    tightest = min(turns, key=lambda turn: turn.slo_ms)
    for duty in _lengths(tightest):
        found = _at(turns, duty)
        if found is not None:
            return found
    return None


def _lengths(turn: Turn) -> list[float]:
    """Cycles to try, longest first: even steps of the SLO, and those that fill whole batches of this turn."""
    longest = turn.slo_ms * STEPS[0]
    whole = int(longest * turn.rate / 1000)
    exact = (1000 * batch / turn.rate for batch in range(whole, max(0, whole - WHOLE), -1))
    return sorted({*(turn.slo_ms * step for step in STEPS), *exact}, reverse=True)


def _at(turns: Sequence[Turn], duty: float) -> Cycle | None:
    batches = []
    latencies = []
    room = duty
    for row, rate, slo, slowdown in turns:
        batch = max(1, ceil(rate * duty / 1000 - ROUNDING))
        if batch >= len(row):
            return None
        latency = row[batch] * slowdown
        room -= latency
        if room < -ROUNDING or duty + latency > slo + ROUNDING:
            return None
        batches.append(batch)
        latencies.append(latency)
    return Cycle(duty, tuple(batches), tuple(latencies))
