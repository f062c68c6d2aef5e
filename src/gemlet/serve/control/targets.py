"""What to plan for: a rate and a variation for each model that stay as they are until they are clearly wrong. Pure.

Up at once, down only after the rate was lower for a while: a plan that is too large costs a part of a GPU, one that is
too small costs replies. Between the two edges nothing changes, so constant rates make no plan but the first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gemlet.serve.control.rates import LEAST_VARIATION, SLOW_S, Meter
from gemlet.serve.planner.keep import FALL
from gemlet.serve.planner.model import Demand

SURE_UP, SURE_DOWN = 3.5, 2.0  # standard errors: up is asked often, and constant rates shall make no plan
ABOVE = 1.05  # of what is expected, so that a rate that goes on rising does not make a plan at each look
STEADY = (0.7, 1.4)  # of the variation: nobody plans anew within these
MOST_VARIATION = 8.0  # beyond, the estimate is a guess


@dataclass(slots=True)
class Target:
    """One model: its demand as last planned, its meter, its rates of the last ``down_after_s`` seconds.

    ``slower`` >= 1: how much slower than its profile the model turned out to be; rates are multiplied by it.
    """

    demand: Demand
    meter: Meter
    floor: float  # requests/s: a model that nobody asks for keeps a place
    down_after_s: float = 30.0
    slower: float = 1.0
    _seen: deque[tuple[float, float]] = field(default_factory=deque)

    @classmethod
    def of(cls, demand: Demand, *, floor: float, down_after_s: float) -> Target:
        meter = Meter.of(demand.rate, demand.variation)
        start = Demand(
            model=demand.model,
            rate=max(floor, demand.rate),
            slo_ms=demand.slo_ms,
            variation=max(LEAST_VARIATION, demand.variation),
        )
        return cls(demand=start, meter=meter, floor=floor, down_after_s=down_after_s)

    def add(self, now: float, count: int, seconds: float) -> None:
        self.meter.add(count, seconds)
        while self._seen and self._seen[0][0] < now - self.down_after_s:
            self._seen.popleft()
        level = max(self.meter.slow, self.meter.fast)  # either may still be on its way to a new rate
        while self._seen and self._seen[-1][1] <= level:  # the largest first: a maximum over a window
            self._seen.pop()
        self._seen.append((now, level))

    def review(self, horizon_s: float) -> bool:
        """Moves the demand if it is clearly wrong for the next ``horizon_s`` seconds; whether it did."""
        old = self.demand
        rate, variation = old.rate, old.variation
        expected = max(self.floor, self.slower * self.meter.ahead(horizon_s))
        highest = max(expected, self.floor, self.slower * self._seen[0][1] if self._seen else 0.0)
        error = self.slower * self.meter.error(SLOW_S)
        if expected - SURE_UP * error > rate:  # whatever is above eats the headroom for bursts
            rate = ABOVE * expected
        elif highest + SURE_DOWN * error < FALL * rate:
            rate = highest
        seen = min(MOST_VARIATION, self.meter.variation)
        if not STEADY[0] * variation <= seen <= STEADY[1] * variation:
            variation = seen
        self.demand = Demand(model=old.model, rate=rate, slo_ms=old.slo_ms, variation=variation)
        return self.demand != old

    def leap(self, rate: float) -> None:
        """In an emergency: at least this rate from now on."""
        self.meter.jump(max(rate, self.meter.fast))
        old = self.demand
        rate = max(self.floor, old.rate, self.slower * rate)
        self.demand = Demand(model=old.model, rate=rate, slo_ms=old.slo_ms, variation=old.variation)
