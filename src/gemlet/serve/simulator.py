"""Serving in virtual time: the queues of queue.py, arrivals of arrivals.py, batches that take what the profile says.

A batch takes L(model, share, batch) x the slow-down by the neighbours that are at work when it starts x a lognormal
factor with the profile's variation. The slow-down has the same form as the planner's prediction, but counts who really
runs. What comes out is simulated: it says how plans and queues behave if the profile is right, not what a GPU does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import ceil, exp, log, sqrt
from typing import TYPE_CHECKING

from gemlet.serve.planner import interference
from gemlet.serve.queue import Batch, Dispatcher, Place, Request

if TYPE_CHECKING:
    from gemlet.serve.planner.model import Plan
    from gemlet.serve.profiles import Profiles

Arrivals = Mapping[str, Iterator[float]]  # seconds, ascending, by model


@dataclass(slots=True)
class Tally:
    """What became of the requests of one model. Latencies in milliseconds."""

    slo_ms: float
    sent: int = 0
    dropped: int = 0
    latencies: list[float] = field(default_factory=list)
    batches: int = 0

    @property
    def in_time(self) -> int:
        return sum(latency <= self.slo_ms + 1e-6 for latency in self.latencies)

    @property
    def attainment(self) -> float:
        """Part of all requests that was answered within the SLO; dropped ones were not. 1 if none were sent."""
        return self.in_time / self.sent if self.sent else 1.0

    def percentile(self, q: float) -> float | None:
        """Nearest rank over the answered requests, q in 0..1."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return ordered[max(0, ceil(q * len(ordered) - 1e-9) - 1)]


@dataclass(slots=True)
class Outcome:
    """One simulated run of ``seconds``."""

    seconds: float
    models: dict[str, Tally]
    busy: dict[tuple[int, int], float]  # seconds at work by (GPU, gpu-let)

    @property
    def attainment(self) -> float:
        sent = sum(tally.sent for tally in self.models.values())
        return sum(tally.in_time for tally in self.models.values()) / sent if sent else 1.0

    @property
    def worst_attainment(self) -> float:
        return min((tally.attainment for tally in self.models.values()), default=1.0)

    @property
    def goodput(self) -> float:
        """Requests/s answered within their SLOs."""
        return sum(tally.in_time for tally in self.models.values()) / self.seconds


def simulate(
    plan: Plan,
    profiles: Profiles,
    arrivals: Arrivals,
    slos: Mapping[str, float],
    seconds: float,
    *,
    seed: int = 1,
    drop: bool = True,
    interfere: bool = True,
) -> Outcome:
    """Runs until every request that comes within ``seconds`` is answered or dropped. ``slos`` in ms, by model."""
    return _Run(plan, profiles, slos, random.Random(seed), drop=drop, interfere=interfere).run(arrivals, seconds)


class _Run:
    def __init__(
        self,
        plan: Plan,
        profiles: Profiles,
        slos: Mapping[str, float],
        chance: random.Random,
        *,
        drop: bool,
        interfere: bool,
    ) -> None:
        self._profiles = profiles
        self._slos = slos
        self._chance = chance
        self._interfere = interfere
        self._rows: dict[tuple[str, float], list[float]] = {}
        self._presses: dict[tuple[float, str], interference.Press] = {}
        self._dispatcher = Dispatcher(
            plan, self._expect, lambda model: profiles.models[model].surface.max_batch, drop=drop
        )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._tallies = {model: Tally(slo) for model, slo in slos.items()}
        self._busy = {(let.gpu, let.number): 0.0 for let in self._dispatcher.lets}

    def run(self, arrivals: Arrivals, seconds: float) -> Outcome:
        for model, stream in arrivals.items():
            self._arrive_next(model, stream)
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
            self._count_drops()
        for drop in self._dispatcher.abandon("the simulation ended"):
            self._tallies[drop.request.model].dropped += 1
        return Outcome(seconds, self._tallies, {let: ms / 1000 for let, ms in self._busy.items()})

    def _arrive_next(self, model: str, stream: Iterator[float]) -> None:
        second = next(stream, None)
        if second is None:
            return

        def arrive() -> None:
            self._tallies[model].sent += 1
            self._dispatcher.submit(Request(model, self._now, self._now + self._slos[model]))
            for batch in self._dispatcher.start(self._now):
                self._execute(batch)
            self._arrive_next(model, stream)

        heapq.heappush(self._events, (second * 1000, next(self._order), arrive))

    def _execute(self, batch: Batch) -> None:
        took = self._service_time(batch)
        self._busy[batch.let.gpu, batch.let.number] += took

        def done() -> None:
            tally = self._tallies[batch.place.model]
            tally.batches += 1
            tally.latencies += [self._now - request.arrived for request in batch.requests]
            for following in self._dispatcher.finish(batch, self._now):
                self._execute(following)

        heapq.heappush(self._events, (batch.started + took, next(self._order), done))

    def _expect(self, place: Place, batch: int) -> float:
        return self._row(place.model, place.let.sm)[batch] * place.alpha

    def _row(self, model: str, sm: float) -> list[float]:
        if (model, sm) not in self._rows:
            self._rows[model, sm] = self._profiles.models[model].surface.row(sm)
        return self._rows[model, sm]

    def _service_time(self, batch: Batch) -> float:
        place = batch.place
        profile = self._profiles.models[place.model]
        took = self._row(place.model, place.let.sm)[len(batch.requests)]
        if self._interfere:
            running = [
                let
                for let in self._dispatcher.lets
                if let.gpu == place.let.gpu and let is not place.let and let.running
            ]
            over = sum(let.sm for let in running) + place.let.sm - 1
            took *= interference.slow_down(profile.sensitivity, [self._press(let.running) for let in running], over)
        if profile.variation > 0:
            sigma = sqrt(log(1 + profile.variation**2))
            took *= exp(self._chance.gauss(-sigma * sigma / 2, sigma))
        return took

    def _press(self, batch: Batch | None) -> interference.Press:
        assert batch is not None
        key = (batch.let.sm, batch.place.model)
        if key not in self._presses:
            self._presses[key] = interference.press(self._profiles, batch.let.sm, [batch.place.model])
        return self._presses[key]

    def _count_drops(self) -> None:
        for drop in self._dispatcher.drops():
            self._tallies[drop.request.model].dropped += 1
