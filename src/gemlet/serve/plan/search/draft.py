"""A plan while it is being made: gpu-lets with rates, and the one judgement whether a device can carry its gpu-lets.

Policies move rates about. Whatever they try, `Draft.holds` says whether every task on the device is still served within
its SLO, with its neighbours, the shares and the memory counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gemlet.serve.plan.model import Demand, Gpu, Plan, PlannedGpuLet, Task
from gemlet.serve.plan.search import cycle, interference, linear
from gemlet.serve.plan.search.pool import Pool, mean_contention, reserve, turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Inventory, PlanOptions
    from gemlet.serve.plan.search.interference import Contention
    from gemlet.serve.plan.search.pool import Contentions
    from gemlet.serve.plan.search.timing import Timing
    from gemlet.serve.profiles.profile import Profiles

SLACK = 1e-6  # requests/s and ticks below which a difference is rounding


@dataclass(slots=True)
class DraftGpuLet:
    """``ticks`` of the SMs and requests/s by model. pool: one with those of the device that serve the same models."""

    ticks: int
    rates: dict[str, float]
    why: list[str] = field(default_factory=list)
    pool: bool = False

    def copy(self) -> DraftGpuLet:
        return DraftGpuLet(self.ticks, dict(self.rates), list(self.why), self.pool)

    def pooled_with(self, other: DraftGpuLet) -> bool:
        """Whether both are of one pool."""
        return self.pool and other.pool and self.rates.keys() == other.rates.keys()


DraftGpu = list[DraftGpuLet]


class ServedGpuLet(NamedTuple):
    """How a gpu-let serves its tasks: what Let and Task say of it, by task in the order of its rates.

    every_ms: from one turn of a task to its next. worst: ms of a request that just missed a turn.
    """

    every_ms: tuple[float, ...]
    worst: tuple[float, ...]
    occupancy: float
    batches: tuple[int, ...]
    latencies: tuple[float, ...]
    capacities: tuple[float, ...]
    slowdowns: tuple[float, ...]


class Draft:
    """GPUs under construction. A value of ``rates`` is never more than its gpu-let can serve."""

    def __init__(self, timing: Timing, options: PlanOptions, inventory: Inventory) -> None:
        self.timing = timing
        self.options = options
        self.profiles: Profiles = timing.profiles
        self.grid = timing.grid
        self.memory = (inventory.memory_mib or self.profiles.device.memory_mib) * options.usable_memory
        self.gpus: list[DraftGpu] = []
        self.work = 0  # judgements of gpu-lets so far, a cycle counting for ten
        self._everyone = tuple(timing.slos)
        self._cycles: dict[tuple[int, tuple[tuple[str, float], ...], tuple[float, ...]], cycle.Cycle | None] = {}
        self._contentions: dict[tuple[int, tuple[str, ...]], Contention] = {}
        models = [self.profiles.models[name] for name in self._everyone]
        known = options.linear is not None or any(
            m.sensitivity.beside or m.pressure.dram or m.pressure.l2 or m.pressure.compute for m in models
        )
        self.alone = not (options.interference and known)

    # What a device may carry

    def room(self, gpu: DraftGpu) -> int:
        """Ticks left on a device."""
        return self.grid - sum(gpu_let.ticks for gpu_let in gpu)

    def slowdown(self, model: str, neighbours: Sequence[DraftGpuLet]) -> float:
        """Slow-down of a model beside these neighbours."""
        if self.alone or not neighbours:
            return 1.0
        if self.options.linear is not None:
            beside = [(gpu_let.ticks / self.grid, gpu_let.rates) for gpu_let in neighbours]
            return linear.slowdown(self.options.linear, self.profiles, model, beside)
        contentions = [self._contention(gpu_let) for gpu_let in neighbours]
        return interference.slowdown_beside(self.profiles.models[model].sensitivity, contentions)

    def _contention(self, gpu_let: DraftGpuLet) -> Contention:
        blind = self.options.blind
        key = (gpu_let.ticks, () if blind else tuple(gpu_let.rates))
        if key not in self._contentions:
            models = self._everyone if blind else tuple(gpu_let.rates)
            self._contentions[key] = interference.contention(self.profiles, gpu_let.ticks / self.grid, models)
        return self._contentions[key]

    @property
    def contentions(self) -> Contentions | None:
        """What gpu-lets of pools do to their neighbours, as far as the options let it be known."""
        if self.alone:
            return None
        if self.options.blind:
            return lambda _pool, ticks: interference.contention(self.profiles, ticks / self.grid, self._everyone)
        return lambda pool, ticks: mean_contention(self.timing, pool, ticks)

    def sustains(self, pools: Sequence[Pool], least: float = 0.0) -> float:
        """How many times their rates pools sustain beside each other on a device, with bursts; 0.0 below ``least``."""
        return reserve(self.timing, pools, self.contentions, least=least)

    def serve(self, gpu_let: DraftGpuLet, neighbours: Sequence[DraftGpuLet]) -> ServedGpuLet | None:
        """How this gpu-let serves its rates beside its neighbours; None if it cannot."""
        return self._serve_pooled(gpu_let, neighbours) if gpu_let.pool else self._serve_apart(gpu_let, neighbours)

    def _serve_apart(self, gpu_let: DraftGpuLet, neighbours: Sequence[DraftGpuLet]) -> ServedGpuLet | None:
        models = tuple(gpu_let.rates)
        self.work += 1
        if len(models) == 1:
            model = models[0]
            slowdown = self.slowdown(model, neighbours)
            found = self.timing.capacity(model, gpu_let.ticks, slowdown)
            if found.rate < gpu_let.rates[model] - SLACK or not found.batch:
                return None
            duty, busy = found.latency_ms, gpu_let.rates[model] / found.rate
            return ServedGpuLet((duty,), (2 * duty,), busy, (found.batch,), (duty,), (found.rate,), (slowdown,))
        if len(models) > self.options.max_models:
            return None
        slowdowns = tuple(self.slowdown(model, neighbours) for model in models)
        # Each turn takes at least rate / capacity of a cycle, so most that cannot work are known without trying cycles.
        least = 0.0
        for model, slowdown in zip(models, slowdowns, strict=True):
            can = self.timing.capacity(model, gpu_let.ticks, slowdown).rate
            least += gpu_let.rates[model] / can if can else 2.0
        if least > 1 + SLACK:
            return None
        held = self._cycle(gpu_let, slowdowns)
        if held is None:
            return None
        capacities = tuple(
            max(rate, 1000 * batch / held.duty_ms)
            for batch, rate in zip(held.batches, gpu_let.rates.values(), strict=True)
        )
        worst = tuple(held.duty_ms + latency for latency in held.latencies)
        every = (held.duty_ms,) * len(models)
        return ServedGpuLet(every, worst, held.occupancy, held.batches, held.latencies, capacities, slowdowns)

    def _serve_pooled(self, gpu_let: DraftGpuLet, neighbours: Sequence[DraftGpuLet]) -> ServedGpuLet | None:
        pools = pools_of([gpu_let, *neighbours])
        self.work += 10
        held = turns(self.timing, pools, self.contentions)
        if held is None:
            return None
        found = held[0].values()
        # Without neighbours, so that other rates, and with them other neighbours' turns, need no other CUDA graphs.
        batches = tuple(self.timing.capacity(model, gpu_let.ticks).batch or 1 for model in gpu_let.rates)
        times = tuple(
            self.timing.row(model, gpu_let.ticks)[batch] * turn.slowdown
            for (model, turn), batch in zip(held[0].items(), batches, strict=True)
        )
        busy = sum(turn.busy for turn in found) / len(pools[0].ticks)
        return ServedGpuLet(
            tuple(turn.every_ms for turn in found),
            tuple(turn.worst_ms for turn in found),
            busy,
            batches,
            times,
            tuple(rate / busy for rate in gpu_let.rates.values()),
            tuple(turn.slowdown for turn in found),
        )

    def _cycle(self, gpu_let: DraftGpuLet, slowdowns: tuple[float, ...]) -> cycle.Cycle | None:
        key = (gpu_let.ticks, tuple(gpu_let.rates.items()), slowdowns)
        if key not in self._cycles:
            self.work += 10
            timing = self.timing
            turns = [
                cycle.Turn(timing.row(model, gpu_let.ticks), rate, timing.slos[model], slowdown)
                for (model, rate), slowdown in zip(gpu_let.rates.items(), slowdowns, strict=True)
            ]
            self._cycles[key] = cycle.fit(turns)
        return self._cycles[key]

    def holds(self, gpu: DraftGpu) -> bool:
        """Every task on the device is served in time and its memory is there. Shares are the caller's business."""
        served = []
        for place, gpu_let in enumerate(gpu):
            how = self.serve(gpu_let, () if self.alone else gpu[:place] + gpu[place + 1 :])
            if how is None:
                return False
            served.append(how)
        return self.memory_of(gpu, served) <= self.memory

    def memory_of(self, gpu: DraftGpu, served: Sequence[ServedGpuLet]) -> float:
        """MiB: contexts, weights (once a process) and the activations of one batch of each task."""
        models = self.profiles.models
        activations = sum(
            models[model].activation_mib * batch
            for gpu_let, how in zip(gpu, served, strict=True)
            for model, batch in zip(gpu_let.rates, how.batches, strict=True)
        )
        context = self.profiles.device.context_mib
        if self.options.executor == "mps":
            weights = sum(models[model].weights_mib for gpu_let in gpu for model in gpu_let.rates)
            return context * len(gpu) + weights + activations
        weights = sum(models[model].weights_mib for model in {m for gpu_let in gpu for m in gpu_let.rates})
        return (context if gpu else 0.0) + weights + activations

    # The end

    def finish(self, policy: str, demands: Sequence[Demand], notes: Sequence[str] = ()) -> Plan:
        """The plan. Every gpu-let must hold; devices and gpu-lets without tasks are left out."""
        gpus: list[Gpu] = []
        for gpu in self.gpus:
            gpu_lets = [gpu_let for gpu_let in gpu if gpu_let.rates]
            if not gpu_lets:
                continue
            served = [
                self._must_serve(gpu_let, [other for other in gpu_lets if other is not gpu_let]) for gpu_let in gpu_lets
            ]
            memory = self.memory_of(gpu_lets, served)
            planned = [self._gpu_let(gpu_let, how) for gpu_let, how in zip(gpu_lets, served, strict=True)]
            planned.sort(key=lambda gpu_let: (-gpu_let.sm, [task.model for task in gpu_let.tasks]))
            gpus.append(Gpu(index=len(gpus), memory_mib=round(memory, 1), gpu_lets=tuple(planned)))
        return Plan(
            policy=policy,
            device=self.profiles.device.name,
            origin=self.profiles.origin,
            gpus=tuple(gpus),
            demands=tuple(demands),
            notes=tuple(notes),
        )

    def _must_serve(self, gpu_let: DraftGpuLet, neighbours: Sequence[DraftGpuLet]) -> ServedGpuLet:
        how = self.serve(gpu_let, neighbours)
        assert how is not None, f"a policy left a gpu-let that does not hold: {gpu_let}"
        return how

    def _gpu_let(self, gpu_let: DraftGpuLet, how: ServedGpuLet) -> PlannedGpuLet:
        tasks = tuple(
            Task(
                model=model,
                rate=_digits(rate),
                capacity=_digits(capacity),
                batch=batch,
                latency_ms=_digits(latency),
                worst_ms=_digits(worst),
                slo_ms=self.timing.slos[model],
                slowdown=round(slowdown, 4),
            )
            for (model, rate), batch, latency, worst, capacity, slowdown in zip(
                gpu_let.rates.items(), how.batches, how.latencies, how.worst, how.capacities, how.slowdowns, strict=True
            )
        )
        return PlannedGpuLet(
            sm=round(gpu_let.ticks / self.grid, 6),
            duty_ms=_digits(max(how.every_ms)),
            occupancy=round(min(1.0, how.occupancy), 4),
            tasks=tasks,
            pool=gpu_let.pool,
            why=tuple(gpu_let.why),
        )


def pools_of(gpu_lets: Sequence[DraftGpuLet]) -> list[Pool]:
    """The pools of a device, that of the first gpu-let first; a gpu-let that is in none is one of its own."""
    groups: list[list[DraftGpuLet]] = []
    for gpu_let in gpu_lets:
        mates = next((mates for mates in groups if mates[0].pooled_with(gpu_let)), None)
        if mates is None:
            groups.append([gpu_let])
        else:
            mates.append(gpu_let)
    return [
        Pool(tuple(mate.ticks for mate in mates), {m: sum(mate.rates[m] for mate in mates) for m in mates[0].rates})
        for mates in groups
    ]


def _digits(value: float) -> float:
    """Without the noise of rounding: people read these."""
    return float(f"{value:.12g}")
