"""What to plan for: a rate and a variation for each model that stay as they are until they are clearly wrong. Pure.

Targets rise at once, and fall only after the rate was lower for a while: a plan that is too large costs a part of a
GPU, one that is too small costs replies. Between the two edges nothing changes, so under constant rates the first plan
stays. A rate that happens to lie on an edge would cross it at any time by the ripple of its average, which at a few
requests/s is large: once the averages have settled, a demand that held is moved only if the rate has moved, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gemlet.serve.control.rates import LEAST_VARIATION, SLOW_S, Meter
from gemlet.serve.plan.keep import FALL
from gemlet.serve.plan.model import Demand

SURE_UP, SURE_DOWN = 3.5, 2.0  # standard errors: the question is asked often, and constant rates must not make a plan
ABOVE = 1.05  # of the expected rate, so that a rate that goes on rising does not make a plan at each look
STEADY = (0.7, 1.4)  # of the variation: nobody plans anew within these
MOST_VARIATION = 8.0  # beyond, the estimate is a guess
SETTLED_S = 6 * SLOW_S  # after these an average has forgotten what it started from
MOVED = 0.05  # of a rate, and one request in the slow average: less does not count as a move


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
    _known_s: float = 0.0  # since the meter started
    _held: tuple[float, float] | None = None  # surely at least, surely at most: their extremes while the demand held

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
        self._known_s += seconds
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
        least, most = expected - SURE_UP * error, highest + SURE_DOWN * error
        move = MOVED * expected + self.slower / SLOW_S
        if least > rate and (self._held is None or least > self._held[0] + move):
            rate = ABOVE * expected  # whatever is above the demand eats the headroom for bursts
        elif most < FALL * rate and (self._held is None or most < self._held[1] - move):
            rate = highest
        if rate != old.rate:
            self._held = None
        elif self._known_s > SETTLED_S + self.down_after_s:
            held = self._held or (least, most)
            self._held = min(held[0], least), max(held[1], most)
        seen = min(MOST_VARIATION, self.meter.variation)
        if not STEADY[0] * variation <= seen <= STEADY[1] * variation:
            variation = seen
        self.demand = Demand(model=old.model, rate=rate, slo_ms=old.slo_ms, variation=variation)
        return self.demand != old

    def leap(self, rate: float) -> None:
        """In an emergency: at least this rate from now on."""
        self.meter.jump(max(rate, self.meter.fast))
        self._known_s, self._held = 0.0, None
        old = self.demand
        rate = max(self.floor, old.rate, self.slower * rate)
        self.demand = Demand(model=old.model, rate=rate, slo_ms=old.slo_ms, variation=old.variation)
