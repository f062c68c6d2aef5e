"""Latency by model and ticks (a tick is 1/grid of the SMs), cached for policies.

A gpu-let that serves one model takes batches of the largest size b with 2 L(b) <= SLO: a request that just missed a
batch waits for that one and then for its own. At that size it serves b / L(b) requests a second, its capacity.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.serve.profiles.profile import Profiles

SLOWDOWN_STEP = 0.01  # slow-downs are rounded up to this, so that what is remembered is found again


class Capacity(NamedTuple):
    """rate in requests/s at this batch, which takes latency_ms; all 0 where no batch meets the SLO."""

    rate: float
    batch: int
    latency_ms: float


NOTHING = Capacity(0.0, 0, 0.0)


class Timing:
    """``grid`` ticks make a device; ``slos`` in milliseconds by model."""

    def __init__(self, profiles: Profiles, slos: Mapping[str, float], grid: int) -> None:
        self.profiles = profiles
        self.slos = slos
        self.grid = grid
        self._rows: dict[tuple[str, int], list[float]] = {}
        self._capacities: dict[tuple[str, int, int], Capacity] = {}
        self._targets: dict[str, int] = {}

    def row(self, model: str, ticks: int) -> list[float]:
        """Milliseconds by batch (index 0 unused) alone on this many ticks."""
        key = (model, ticks)
        if key not in self._rows:
            self._rows[key] = self.profiles.models[model].surface.row(ticks / self.grid)
        return self._rows[key]

    def capacity(self, model: str, ticks: int, slowdown: float = 1.0) -> Capacity:
        """What one gpu-let of this size serves of this model alone, slowed down by ``slowdown``."""
        steps = ceil((slowdown - 1) / SLOWDOWN_STEP - 1e-9)
        key = (model, ticks, steps)
        found = self._capacities.get(key)
        if found is None:
            slow = 1 + steps * SLOWDOWN_STEP
            limit = self.slos[model] / 2 + 1e-12
            found = NOTHING
            for batch, ms in enumerate(self.row(model, ticks)):
                if batch and ms * slow <= limit:
                    rate = 1000 * batch / (ms * slow)
                    if rate >= found.rate:
                        found = Capacity(rate, batch, ms * slow)
            self._capacities[key] = found
        return found

    def smallest(self, model: str, rate: float, limit: int, slowdown: float = 1.0) -> int | None:
        """Fewest ticks, at most ``limit``, that serve this rate."""
        for ticks in range(1, limit + 1):
            if self.capacity(model, ticks, slowdown).rate >= rate:
                return ticks
        return None

    def target(self, model: str) -> int:
        """The size that serves most requests for each tick; the smaller of equals, which is easier to place."""
        if model not in self._targets:
            self._targets[model] = max(
                range(1, self.grid + 1), key=lambda ticks: (self.capacity(model, ticks).rate / ticks, -ticks)
            )
        return self._targets[model]

    def fluid_ticks(self, model: str, rate: float) -> float:
        """The least that this rate costs if gpu-lets could be cut to measure: a lower bound."""
        ticks = self.target(model)
        best = self.capacity(model, ticks).rate
        return rate * ticks / best if best else float("inf")
