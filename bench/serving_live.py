"""One plan on one GPU under load, with the queues and the executors of `gemlet serve`: the engine of bench/serving.py.

The thread that sends only puts requests into their queues and starts gpu-lets that are idle; a gpu-let that is done
forms its next batch itself. It writes down what a batch took against what the profile says, and how long a gpu-let
that had more to do did nothing between two batches: what a trial lost, and where.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gemlet.load import arrivals
from gemlet.serve.dispatch.dispatcher import Dispatcher
from gemlet.serve.dispatch.expectation import Expectation
from gemlet.serve.dispatch.gpu_lets import Assignment, Batch, GpuLetState
from gemlet.serve.dispatch.request import Request
from gemlet.serve.execution.backend import GpuLet
from gemlet.serve.models import built_in
from gemlet.serve.profiles.ladder import ladder
from gemlet.simulate.serving.simulator import Tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.plan.model import Plan
    from gemlet.serve.profiles.profile import Profiles

WARM_UP_S = 0.2  # of a trial, not counted
TICK_S = 0.0001  # between two checks for arrivals
PATIENCE_S = 5.0  # for the last batches of a trial
KINDS = {"UINT8": np.uint8, "INT64": np.int64, "FP32": np.float32}
ENDLESS_MS = 1e9  # an SLO that nothing misses


class Runs(Protocol):
    """The part of a backend that is needed here."""

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None: ...
    def run(
        self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int
    ) -> Mapping[str, np.ndarray]: ...


class Nothing:
    """A backend whose models take no time: what remains is the harness itself."""

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        """Nothing to prepare."""

    def run(self, _gpu_let: str, _model: str, _inputs: Mapping[str, np.ndarray], _batch: int) -> dict[str, np.ndarray]:
        return {}


@dataclass
class Work:
    """What one gpu-let did in a trial: milliseconds of each batch over those expected, and idle ones in between."""

    ratios: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def summary(self, seconds: float) -> dict[str, float]:
        ordered = sorted(self.ratios)
        return {
            "batches": len(self.ratios),
            "mean_batch": round(float(np.mean(self.sizes)), 2) if self.sizes else 0.0,
            "busy": round(self.busy_s / seconds, 3),
            "over_expected_p50": round(median(ordered), 3) if ordered else 0.0,
            "over_expected_p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3) if ordered else 0.0,
            "gap_ms_p50": round(median(self.gaps), 4) if self.gaps else 0.0,
        }


class Trial:
    """Requests of one rate, and what became of them. ``lock`` guards the dispatcher and the tallies."""

    def __init__(self, dispatcher: Dispatcher, slos: dict[str, float], warm_up_s: float = WARM_UP_S) -> None:
        self.dispatcher, self.counted_from = dispatcher, 1000 * warm_up_s
        self.tallies = {model: Tally(slo) for model, slo in slos.items()}
        self.lock = threading.Lock()
        self.begin = time.perf_counter() + 0.01
        self.running = 0
        self.work: dict[tuple[int, int], Work] = {}

    def now(self) -> float:
        """Milliseconds since it began."""
        return 1000 * (time.perf_counter() - self.begin)

    def account(self, batch: Batch, now: float) -> None:
        tally = self.tallies[batch.place.model]
        tally.batches += 1
        tally.latencies += [now - r.arrived for r in batch.requests if r.arrived > self.counted_from]


class GpuLetThread(threading.Thread):
    """Executes batches of one gpu-let, and goes on with the next one as long as there is one."""

    def __init__(self, live: Live, key: tuple[int, int], name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.live, self.key, self.gpu_let = live, key, name
        self.given: queue.SimpleQueue[tuple[Trial, Batch] | None] = queue.SimpleQueue()
        self.error: Exception | None = None

    def run(self) -> None:
        while (given := self.given.get()) is not None:
            trial, batch = given
            try:
                self.execute(trial, batch)
            except Exception as error:  # noqa: BLE001  raised again by the thread that sends
                self.error = error
                return

    def execute(self, trial: Trial, first: Batch) -> None:
        following: Batch | None = first
        ended = 0.0
        work = trial.work.setdefault(self.key, Work())
        while following is not None:
            batch = following
            model, rows = batch.place.model, batch.rows
            began = trial.now()
            if ended:
                work.gaps.append(began - ended)
            self.live.backend.run(self.gpu_let, model, self.live.slices[model][rows], rows)
            ended = trial.now()
            work.busy_s += (ended - began) / 1000
            work.ratios.append((ended - began) / self.live.by_profile(batch.place, rows))
            work.sizes.append(rows)
            with trial.lock:
                trial.account(batch, ended)
                following = next(trial.dispatcher.finish(batch, ended), None)
                if following is None:
                    trial.running -= 1


class Padded(Expectation):
    """A batch takes as long as the captured one it is padded to."""

    def __init__(self, known: Profiles, largest: dict[str, int]) -> None:
        super().__init__()
        self.steps = {model: ladder(most) for model, most in largest.items()}
        for model in largest:
            self.know(model, known.models[model])

    def __call__(self, place: Assignment, rows: int) -> float:
        return super().__call__(place, min(step for step in self.steps[place.model] if step >= rows))


class Live:
    """A plan, prepared on a backend and ready for requests. ``slos``: ms by model."""

    def __init__(self, backend: Runs, made: Plan, known: Profiles, slos: dict[str, float]) -> None:
        self.backend, self.plan, self.known, self.slos = backend, made, known, slos
        self.largest = {model: known.models[model].surface.max_batch for model in slos}
        self.by_profile = Padded(known, self.largest)
        self.slices = {model: _inputs(model, self.largest[model]) for model in slos}
        names = {(gpu.index, n): f"gpu{gpu.index}/let{n}" for gpu in made.gpus for n in range(len(gpu.gpu_lets))}
        backend.partition(
            [
                GpuLet(
                    name=names[gpu.index, n],
                    sm=gpu_let.sm,
                    models={t.model: self.largest[t.model] for t in gpu_let.tasks},
                )
                for gpu in made.gpus
                for n, gpu_let in enumerate(gpu.gpu_lets)
            ]
        )
        self.gpu_lets = {key: GpuLetThread(self, key, name) for key, name in names.items()}
        for gpu_let in self.gpu_lets.values():
            gpu_let.start()
        self.last: Trial | None = None

    def close(self) -> None:
        for gpu_let in self.gpu_lets.values():
            gpu_let.given.put(None)
        for gpu_let in self.gpu_lets.values():
            gpu_let.join(PATIENCE_S)

    def dispatcher(self) -> Dispatcher:
        """One that has seen nothing yet: a trial says nothing of the next."""
        return Dispatcher(self.plan, Padded(self.known, self.largest), self.largest.__getitem__)

    def warm_up(self) -> None:
        """Each model once on each gpu-let, in the gpu-let's own thread: what is made at a first call is made now."""
        for gpu in self.plan.gpus:
            for number, planned in enumerate(gpu.gpu_lets):
                trial = Trial(self.dispatcher(), self.slos)
                for task in planned.tasks:
                    for rows in (1, self.largest[task.model]):
                        gpu_let = GpuLetState(gpu.index, number, planned.sm, retired=True)
                        requests = [Request(task.model, 0.0, ENDLESS_MS) for _ in range(rows)]
                        gpu_let.running = Batch(Assignment(gpu_let, task.model, 1, 1.0, 1.0), requests, 0.0)
                        trial.running += 1
                        self.gpu_lets[gpu.index, number].given.put((trial, gpu_let.running))
                self._wait(trial)

    def run(
        self, rates: dict[str, float], seconds: float, *, slo_ms: float = 0.0, warm_up_s: float = WARM_UP_S
    ) -> dict[str, Tally]:
        """Poisson requests for this long, all of them answered or dropped. ``slo_ms``: in place of the models' own."""
        slos = {model: slo_ms or slo for model, slo in self.slos.items()}
        coming = _requests(rates, slos, seconds)
        trial = self.last = Trial(self.dispatcher(), slos, warm_up_s)
        number = 0
        while number < len(coming):
            now = trial.now()
            with trial.lock:
                touched = set()
                while number < len(coming) and coming[number].arrived <= now:
                    request = coming[number]
                    number += 1
                    trial.dispatcher.submit(request)
                    touched.add(request.model)
                    if request.arrived > trial.counted_from:
                        trial.tallies[request.model].sent += 1
                for model in touched:
                    for batch in trial.dispatcher.start(now, model):
                        trial.running += 1
                        self.gpu_lets[batch.gpu_let.gpu, batch.gpu_let.number].given.put((trial, batch))
                trial.dispatcher.drops()  # sent, and never in time
            self._check()
            if number < len(coming):
                time.sleep(max(TICK_S, (coming[number].arrived - trial.now()) / 1000))
        self._wait(trial)
        return trial.tallies

    def _wait(self, trial: Trial) -> None:
        """Until nothing runs; what still waits is started by the gpu-lets themselves."""
        end = time.perf_counter() + PATIENCE_S
        while trial.running and time.perf_counter() < end:
            self._check()
            time.sleep(0.0005)
        if trial.running:
            raise RuntimeError(f"{trial.running} gpu-lets are not done after {PATIENCE_S:g} s")

    def _check(self) -> None:
        for gpu_let in self.gpu_lets.values():
            if gpu_let.error is not None:
                raise gpu_let.error


def harness_rate(made: Plan, known: Profiles, rates: dict[str, float], seconds: float = 0.2) -> float:
    """Requests/s that the harness itself carries of these, with this plan and models that take no time."""
    live = Live(Nothing(), made, known, dict.fromkeys(rates, ENDLESS_MS))
    try:
        begin = time.perf_counter()
        tallies = live.run(rates, seconds, slo_ms=ENDLESS_MS, warm_up_s=0.0)
        return sum(len(tally.latencies) for tally in tallies.values()) / (time.perf_counter() - begin)
    finally:
        live.close()


def _inputs(model: str, largest: int) -> list[dict[str, np.ndarray]]:
    """By number of rows, so that nothing is sliced under load."""
    entry, chance = built_in.BUILT_IN[model], np.random.default_rng(1)
    arrays: dict[str, Any] = {
        t.name: chance.integers(0, entry.below, (largest, *t.shape)).astype(KINDS[t.datatype]) for t in entry.inputs
    }
    return [{name: array[:rows] for name, array in arrays.items()} for rows in range(largest + 1)]


def _requests(rates: dict[str, float], slos: dict[str, float], seconds: float) -> list[Request]:
    coming = [
        Request(model, 1000 * at, 1000 * at + slos[model])
        for model, rate in rates.items()
        for at in arrivals.times(
            arrivals.constant(rate), arrivals.gaps("poisson", 1.0, random.Random(f"1/{model}")), seconds
        )
    ]
    return sorted(coming, key=lambda request: request.arrived)
