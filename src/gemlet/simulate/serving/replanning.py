"""The controller in the simulator: the same decisions, and what it costs to plan and to make gpu-lets ready."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from gemlet.serve.control import difference, propose
from gemlet.serve.control.change import Change
from gemlet.serve.control.decide import Decider, capacity
from gemlet.serve.plan import planner
from gemlet.serve.profiles import kinds
from gemlet.serve.profiles.ladder import ladder
from gemlet.simulate.serving.simulator import Coming, Warming

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.serve.control.overload import Planner
    from gemlet.serve.control.propose import Proposal
    from gemlet.serve.control.settings import ControlSettings
    from gemlet.serve.plan.model import Demand, Infeasible, Plan
    from gemlet.serve.profiles.kinds import Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What stands between a reason for a plan and the plan in force; measured, but for the assumed load_mib_per_s.

    plan_s: of each question to the planner: 0.03 to 0.06 s on the host of an H200, seven of them in an overload.
    warm: a gpu-let is ready for a model after so many times what one batch of each size takes that gets a CUDA graph:
    each runs a few times, is captured and replayed, beside the models that run. 2.2 to 5.4 times on an H200, where that
    is 0.12 s for BERT and 0.5 s for DenseNet-161 on a fifth of the device (docs/performance/serving.md).
    """

    plan_s: float = 0.05
    warm: float = 4.0
    load_mib_per_s: float = 2000.0


class SimulatedController:
    """One controller for one run; ``devices`` of them live. ``history``: what it did."""

    def __init__(
        self,
        known: Known,
        demands: Sequence[Demand],
        settings: ControlSettings,
        start: Plan,
        *,
        devices: int,
        costs: Costs | None = None,
        plan: Planner = planner.plan,
    ) -> None:
        self.decider = Decider(demands, settings)
        self.history: list[Change] = []
        self._known = known
        self._devices = range(devices)
        self._costs = costs or Costs()
        self._planner = plan
        self._questions = 0  # to the planner, for the proposal at hand
        self._proposal: Proposal | None = None
        self._start: Plan | None = start
        self._warm: dict[tuple[int, float, str, int], int] = {}  # largest batch that has a graph, see _warming()
        self._warming(start, {})

    @property
    def tick_s(self) -> float:
        return self.decider.settings.tick_s

    def look(self, second: float, counts: Mapping[str, int], waiting: Mapping[str, int]) -> Coming | None:
        if self._start is not None:
            self.decider.observe(second, {}, self._devices)
            self.decider.started_with(self._start, second)
            self._start = None
            return None
        cause = self.decider.observe(second, counts, self._devices, waiting)
        if cause is None:
            return None
        old = self.decider.in_force
        self._questions = 0
        proposal = propose.answer(self._known, self.decider.question(cause), self._plan)
        plan = proposal.plan
        delay = 0.0
        warming: tuple[Warming, ...] = ()
        if plan is not None and (old is None or plan.gpus != old.gpus):
            loaded = self._loaded(difference.steps(old, plan))
            begin = self._costs.plan_s * self._questions
            warming = self._warming(plan, {gpu: begin + seconds for gpu, seconds in loaded.items()}, begin)
            delay = max([begin, *(begin + seconds for seconds in loaded.values()), *(each.end for each in warming)])
        stayed, moved = (0, 0) if plan is None else difference.moved(old, plan)
        gpus = 0 if plan is None else len(plan.gpus)
        self.history.append(Change(second, cause, gpus, stayed, moved, proposal.part, delay, proposal.notes))
        if plan is None or (old is not None and plan.gpus == old.gpus):
            self.decider.adopted(proposal, second)
            return None
        self._proposal = proposal
        return Coming(delay, plan, warming)

    def adopted(self, second: float, plan: Plan) -> None:
        assert self._proposal is not None
        assert self._proposal.plan is plan
        self.decider.adopted(self._proposal, second)
        self._proposal = None

    def _plan(self, *question: Any, **chosen: Any) -> Plan | Infeasible:
        """The planner, whose questions are counted."""
        self._questions += 1
        return self._planner(*question, **chosen)

    def _loaded(self, steps: Sequence[difference.Step]) -> dict[int, float]:
        """Seconds by device: they load side by side, each one model after the other."""
        loads: dict[int, float] = {}
        for step in steps:
            if isinstance(step, difference.Load):
                mib = kinds.on(self._known, step.gpu).models[step.model].weights_mib
                loads[step.gpu] = loads.get(step.gpu, 0.0) + mib / self._costs.load_mib_per_s
        return loads

    def _warming(self, plan: Plan, begins: Mapping[int, float], begin: float = 0.0) -> tuple[Warming, ...]:
        """What the plan needs that was not ready before: one gpu-let after the other on each device.

        A share of a device that was used for a model keeps its graphs, as in the live executor.
        """
        found = []
        for gpu in plan.gpus:
            at = begins.get(gpu.index, begin)
            seen: Counter[tuple[float, str]] = Counter()
            for gpu_let in gpu.gpu_lets:
                for task in gpu_let.tasks:
                    surface = kinds.on(self._known, gpu.index).models[task.model].surface
                    largest = max(task.batch, surface.max_batch) if len(gpu_let.tasks) == 1 else task.batch
                    seen[gpu_let.sm, task.model] += 1
                    key = (gpu.index, gpu_let.sm, task.model, seen[gpu_let.sm, task.model])
                    if self._warm.get(key, 0) >= largest:
                        continue
                    self._warm[key] = largest
                    row = surface.row(gpu_let.sm)
                    took = self._costs.warm * sum(row[size] for size in ladder(largest)) / 1000
                    found.append(Warming(at, at + took, gpu.index, gpu_let.sm, task.model))
                    at += took
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A time in which the plan in force could not serve the rate of some model, in seconds."""

    begin: float
    end: float
    models: tuple[str, ...]


def shortages(
    rates: Mapping[str, Callable[[float], float]], plans: Sequence[tuple[float, Plan]], seconds: float
) -> list[Shortage]:
    """When the true rates were above what the plans in force (from which second on) could serve; in steps of 0.1 s.

    The length of one is the reaction time: from a rate that is too high to a plan that serves it.
    """
    found: list[Shortage] = []
    current: set[str] = set()
    begin = 0.0
    ends = [*(start for start, _ in plans[1:]), inf]
    place = 0
    steps = round(seconds * 10)
    for step in range(steps + 1):
        second = step / 10
        while second >= ends[place]:
            place += 1
        plan = plans[place][1]
        short = {model for model, rate in rates.items() if rate(second) > capacity(plan, model) * 1.0001}
        if short and not current:
            begin = second
        if current and (not short or step == steps):
            found.append(Shortage(begin, second, tuple(sorted(current))))
            current = set()
        current = current | short if short else set()
    return found


def gpu_seconds(plans: Sequence[tuple[float, Plan]], seconds: float) -> float:
    """Devices in use, summed over time."""
    ends = [*(start for start, _ in plans[1:]), seconds]
    return sum(len(plan.gpus) * (end - start) for (start, plan), end in zip(plans, ends, strict=True))
