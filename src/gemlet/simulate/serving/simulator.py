"""Serving in virtual time: the queues of dispatcher.py, arrivals of arrivals.py, batches as the profile says.

A batch takes L(model, share, batch) x the slow-down by the neighbours that are at work when it starts x the jitter of
the profile's variation, or what a Spread says, + what its way to the executor and back takes. The slow-down has the
same form as the planner's prediction, but counts who really runs. What comes out is simulated: it says how plans and
queues behave if the profile is right, not what a GPU does.

With a `Control` the plan follows the load: it is asked as often as the live controller looks, and a new plan is in
force after as long as the control says that it takes. What is made ready for it meanwhile is a neighbour of the models
that run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

from gemlet.serve.dispatch.dispatcher import Dispatcher
from gemlet.serve.dispatch.expectation import Expectation
from gemlet.serve.dispatch.request import Request
from gemlet.serve.plan.search import interference
from gemlet.serve.profiles import kinds, variation
from gemlet.serve.profiles.variation import nearest_rank

if TYPE_CHECKING:
    from gemlet.serve.dispatch.gpu_lets import Batch
    from gemlet.serve.plan.model import Plan
    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import Profiles

ROUNDING_MS = 1e-6
Arrivals = Mapping[str, Iterator[float]]  # seconds, ascending, by model


@dataclass(slots=True)
class Tally:
    """What became of the requests of one model. Latencies in milliseconds."""

    slo_ms: float
    sent: int = 0
    dropped: int = 0
    latencies: list[float] = field(default_factory=list)
    batches: int = 0
    missed: list[float] = field(default_factory=list)  # when those came that were dropped or late: seconds

    @property
    def in_time(self) -> int:
        return sum(latency <= self.slo_ms + ROUNDING_MS for latency in self.latencies)

    @property
    def attainment(self) -> float:
        """Part of all requests that was answered within the SLO; dropped ones were not. 1 if none were sent."""
        return self.in_time / self.sent if self.sent else 1.0

    def percentile(self, q: float) -> float | None:
        """Nearest rank over the answered requests, q in 0..1."""
        return nearest_rank(sorted(self.latencies), q) if self.latencies else None


@dataclass(slots=True)
class Outcome:
    """One simulated run of ``seconds``."""

    seconds: float
    models: dict[str, Tally]
    busy: dict[tuple[int, int], float]  # seconds at work by (GPU, gpu-let)
    plans: list[tuple[float, Plan]]  # from which second on which plan was in force

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much batches of one size, and their ways, differ: the 95th percentile over the median; 1: as if they did not.

    batch: of batches that have neighbours when they start, in place of the profile's variation, which was measured on
    models alone. way: of the hop.
    """

    batch: float = 1.0
    way: float = 1.0


EVEN = Spread()
# On an H200 (docs/performance/serving.md): batches 1.14 to 1.19, the way 0.39 ms at the median and 0.86 at p95.
MEASURED = Spread(batch=1.17, way=2.2)


@dataclass(frozen=True, slots=True)
class Warming:
    """A gpu-let that is made ready for a model, from ``begin`` to ``end``: seconds after the look that asked for it."""

    begin: float
    end: float
    gpu: int
    sm: float
    model: str


@dataclass(frozen=True, slots=True)
class Coming:
    """A plan that is in force ``delay`` seconds after the look; until then the one before is."""

    delay: float
    plan: Plan
    warming: tuple[Warming, ...] = ()


class Control(Protocol):
    """The controller, as a simulation sees it. ``tick_s``: seconds between two looks."""

    @property
    def tick_s(self) -> float: ...

    def look(self, second: float, counts: Mapping[str, int], waiting: Mapping[str, int]) -> Coming | None:
        """What came since the last look, and what waits; a new plan, if there is reason for one."""
        ...

    def adopted(self, second: float, plan: Plan) -> None: ...


def simulate(
    plan: Plan,
    known: Known,
    arrivals: Arrivals,
    slos: Mapping[str, float],
    seconds: float,
    *,
    seed: int = 1,
    drop: bool = True,
    interfere: bool = True,
    hop_ms: float = 0.0,
    spread: Spread = EVEN,
    control: Control | None = None,
) -> Outcome:
    """Runs until every request that comes within ``seconds`` is answered or dropped. ``slos`` in ms, by model.

    hop_ms: of each batch, beside its time; where the ``spread`` has one, the median.
    """
    run = _Run(plan, known, slos, random.Random(seed), drop=drop, interfere=interfere, hop_ms=hop_ms, spread=spread)
    return run.run(arrivals, seconds, control)


class _Run:
    def __init__(
        self,
        plan: Plan,
        known: Known,
        slos: Mapping[str, float],
        chance: random.Random,
        *,
        drop: bool,
        interfere: bool,
        hop_ms: float,
        spread: Spread,
    ) -> None:
        self._known = known
        self._slos = slos
        self._chance = chance
        self._interfere = interfere
        self._hop_ms = hop_ms
        self._spread = spread
        self._rows: dict[tuple[str, str, float], list[float]] = {}
        self._contentions: dict[tuple[str, float, str], interference.Contention] = {}
        expectation = Expectation()
        if isinstance(known, kinds.ProfilesByKind):
            expectation.kinds = known.devices
        largest = {}
        for model in kinds.models(known):
            profiles = kinds.of_model(known, model)
            expectation.know(model, profiles)
            largest[model] = max(profile.surface.max_batch for profile in profiles.values())
        self._dispatcher = Dispatcher(plan, expectation, largest.__getitem__, drop=drop)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._tallies = {model: Tally(slo) for model, slo in slos.items()}
        self._busy = {(gpu_let.gpu, gpu_let.number): 0.0 for gpu_let in self._dispatcher.gpu_lets}
        # What works on each GPU: gpu-lets, also those of an old plan that end their batch, and what is being warmed.
        self._working: dict[int, dict[int, tuple[float, str]]] = {}  # (share, model), by identity
        self._plans = [(0.0, plan)]
        self._counts = dict.fromkeys(slos, 0)

    def run(self, arrivals: Arrivals, seconds: float, control: Control | None) -> Outcome:
        for model, stream in arrivals.items():
            self._arrive_next(model, stream)
        if control is not None:
            self._look(control, seconds)
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
            self._count_drops()
        for drop in self._dispatcher.abandon("the simulation ended"):
            self._drop(drop.request)
        return Outcome(seconds, self._tallies, {gpu_let: ms / 1000 for gpu_let, ms in self._busy.items()}, self._plans)

    def _arrive_next(self, model: str, stream: Iterator[float]) -> None:
        second = next(stream, None)
        if second is None:
            return

        def arrive() -> None:
            self._tallies[model].sent += 1
            self._counts[model] += 1
            self._dispatcher.submit(Request(model, self._now, self._now + self._slos[model]))
            self._start()
            self._arrive_next(model, stream)

        self._at(second * 1000, arrive)

    def _at(self, ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (ms, next(self._order), act))

    def _start(self) -> None:
        for batch in self._dispatcher.start(self._now):
            self._execute(batch)

    def _look(self, control: Control, seconds: float) -> None:
        counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
        waiting = {model: len(queue) for model, queue in self._dispatcher.queues.items()}
        found = control.look(self._now / 1000, counts, waiting)
        if found is not None:
            plan = found.plan

            def adopt() -> None:
                self._dispatcher.adopt(plan)
                self._plans.append((self._now / 1000, plan))
                control.adopted(self._now / 1000, plan)
                self._start()

            for warming in found.warming:
                self._warm(warming)
            self._at(self._now + 1000 * found.delay, adopt)
        if self._now / 1000 + control.tick_s < seconds:
            self._at(self._now + 1000 * control.tick_s, lambda: self._look(control, seconds))

    def _warm(self, warming: Warming) -> None:
        """A neighbour like any other while it lasts, on SMs that gpu-lets in force may have as well."""

        def begin() -> None:
            self._working.setdefault(warming.gpu, {})[id(warming)] = (warming.sm, warming.model)

        def end() -> None:
            del self._working[warming.gpu][id(warming)]

        self._at(self._now + 1000 * warming.begin, begin)
        self._at(self._now + 1000 * warming.end, end)

    def _execute(self, batch: Batch) -> None:
        gpu_let = batch.gpu_let
        took = self._service_time(batch)
        self._busy[gpu_let.gpu, gpu_let.number] = self._busy.get((gpu_let.gpu, gpu_let.number), 0.0) + took
        self._working.setdefault(gpu_let.gpu, {})[id(gpu_let)] = (gpu_let.sm, batch.place.model)

        def done() -> None:
            del self._working[gpu_let.gpu][id(gpu_let)]
            tally = self._tallies[batch.place.model]
            tally.batches += 1
            for request in batch.requests:
                latency = self._now - request.arrived
                tally.latencies.append(latency)
                if latency > tally.slo_ms + ROUNDING_MS:
                    tally.missed.append(request.arrived / 1000)
            for following in self._dispatcher.finish(batch, self._now):
                self._execute(following)

        self._at(batch.started + took, done)

    def _alone(self, profiles: Profiles, model: str, sm: float, rows: int) -> float:
        """Milliseconds; beyond the profile no faster per row, as a model may have larger batches on another kind."""
        key = (profiles.device.name, model, sm)
        if key not in self._rows:
            self._rows[key] = profiles.models[model].surface.row(sm)
        row = self._rows[key]
        last = len(row) - 1
        return row[rows] if rows <= last else row[last] * rows / last

    def _service_time(self, batch: Batch) -> float:
        place = batch.place
        profiles = kinds.on(self._known, place.gpu_let.gpu)
        profile = profiles.models[place.model]
        took = self._alone(profiles, place.model, place.gpu_let.sm, len(batch.requests))
        working = self._working.get(place.gpu_let.gpu, {})
        running = [each for which, each in working.items() if which != id(place.gpu_let)]
        if self._interfere:
            over = sum(sm for sm, _ in running) + place.gpu_let.sm - 1
            took *= interference.slowdown_beside(
                profile.sensitivity, [self._contention(profiles, *each) for each in running], over
            )
        if running and self._spread.batch > 1:
            took *= variation.around_median(self._spread.batch, self._chance)
        else:
            took *= variation.jitter(profile.variation, self._chance)
        return took + self._hop_ms * variation.around_median(self._spread.way, self._chance)

    def _contention(self, profiles: Profiles, sm: float, model: str) -> interference.Contention:
        key = (profiles.device.name, sm, model)
        if key not in self._contentions:
            self._contentions[key] = interference.contention(profiles, sm, [model])
        return self._contentions[key]

    def _count_drops(self) -> None:
        for drop in self._dispatcher.drops():
            self._drop(drop.request)

    def _drop(self, request: Request) -> None:
        tally = self._tallies[request.model]
        tally.dropped += 1
        tally.missed.append(request.arrived / 1000)
