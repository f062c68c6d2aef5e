"""The controller in the simulator: the same decisions, with assumptions about how long it takes to apply them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gemlet.serve.control import difference, propose
from gemlet.serve.control.change import Change
from gemlet.serve.control.decide import Decider, capacity
from gemlet.serve.plan import planner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.serve.control.overload import Planner
    from gemlet.serve.control.propose import Proposal
    from gemlet.serve.control.settings import ControlSettings
    from gemlet.serve.plan.model import Demand, Plan
    from gemlet.serve.profiles.profile import Profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Assumed, not measured: seconds to plan, to split the devices anew; MiB/s at which weights are loaded."""

    plan_s: float = 0.1
    split_s: float = 0.05
    load_mib_per_s: float = 2000.0


class SimulatedController:
    """One controller for one run; ``devices`` of them live. ``history``: what it did."""

    def __init__(
        self,
        profiles: Profiles,
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
        self._profiles = profiles
        self._devices = range(devices)
        self._costs = costs or Costs()
        self._plan = plan
        self._proposal: Proposal | None = None
        self._start: Plan | None = start

    @property
    def tick_s(self) -> float:
        return self.decider.settings.tick_s

    def look(self, second: float, counts: Mapping[str, int], waiting: Mapping[str, int]) -> tuple[float, Plan] | None:
        if self._start is not None:
            self.decider.observe(second, {}, self._devices)
            self.decider.started_with(self._start, second)
            self._start = None
            return None
        cause = self.decider.observe(second, counts, self._devices, waiting)
        if cause is None:
            return None
        old = self.decider.in_force
        proposal = propose.answer(self._profiles, self.decider.question(cause), self._plan)
        plan = proposal.plan
        delay = 0.0
        if plan is not None and (old is None or plan.gpus != old.gpus):
            delay = self._costs.plan_s + self._takes(difference.steps(old, plan))
        stayed, moved = (0, 0) if plan is None else difference.moved(old, plan)
        gpus = 0 if plan is None else len(plan.gpus)
        self.history.append(Change(second, cause, gpus, stayed, moved, proposal.part, delay, proposal.notes))
        if plan is None or not delay:
            self.decider.adopted(proposal, second)
            return None
        self._proposal = proposal
        return delay, plan

    def adopted(self, second: float, plan: Plan) -> None:
        assert self._proposal is not None
        assert self._proposal.plan is plan
        self.decider.adopted(self._proposal, second)
        self._proposal = None

    def _takes(self, steps: Sequence[difference.Step]) -> float:
        """Devices load side by side, each one model after the other."""
        loads: dict[int, float] = {}
        for step in steps:
            if isinstance(step, difference.Load):
                mib = self._profiles.models[step.model].weights_mib
                loads[step.gpu] = loads.get(step.gpu, 0.0) + mib / self._costs.load_mib_per_s
        split = self._costs.split_s if any(isinstance(step, difference.Partition) for step in steps) else 0.0
        return max(loads.values(), default=0.0) + split


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
