"""When to plan anew: the controller without its clock and its fleet. Pure; the simulator runs it, too.

`observe` is cheap and called several times a second; it says whether there is a reason to plan. `question` then gives
the question for propose.py, and `adopted` takes note of the plan that came of it.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from gemlet.serve.control.propose import Proposal, Question
from gemlet.serve.control.rates import FAST_S
from gemlet.serve.control.settings import Cause, ControlSettings
from gemlet.serve.control.targets import Target
from gemlet.serve.plan.keep import RISE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.plan.model import Demand, Plan

SURE = 4.0  # standard deviations of a count that no plan's headroom explains
RISE_IN_OVERLOAD = 1.25  # with too few devices a new plan only shares them out anew
QUEUE_PART = 0.75  # of what could be served within an SLO: more than this waits only where service falls behind
QUEUE_LEAST = 8
QUEUE_S = 0.5  # for this long
SLOWER_STEP, SLOWER_MOST, SLOWER_HOLD_S = 1.15, 2.0, 60.0


class Decider:
    """Rates and plan of one fleet. ``demands`` are models with their SLOs, and rates as far as they are known."""

    def __init__(self, demands: Sequence[Demand], settings: ControlSettings | None = None) -> None:
        self.settings = settings or ControlSettings()
        self._targets: dict[str, Target] = {}
        for demand in demands:
            self.demand(demand)
        self.in_force: Plan | None = None
        self._devices: tuple[int, ...] = ()
        self._now: float | None = None
        self._planned_at = float("-inf")
        self._reviewed_at = float("-inf")
        self._planned_for: dict[str, float] = {}
        self._long_queues: dict[str, float] = {}  # seconds
        self._slowed_at: dict[str, float] = {}
        self._changed = True  # models or devices since the last plan
        self._asked = False  # a plan is being made or applied
        self._in_overload = False  # more devices would do something for the plan in force

    @property
    def demands(self) -> tuple[Demand, ...]:
        """What a plan is made for now."""
        return tuple(target.demand for target in self._targets.values())

    def rates(self) -> dict[str, float]:
        """Requests/s as measured, by model."""
        return {model: target.meter.slow for model, target in self._targets.items()}

    def demand(self, demand: Demand) -> None:
        """A model to serve from now on, or its new SLO."""
        self._targets[demand.model] = Target.of(
            demand, floor=self.settings.floor_rate, down_after_s=self.settings.down_after_s
        )
        self._changed = True

    def forget(self, model: str) -> None:
        self._changed |= self._targets.pop(model, None) is not None

    def observe(
        self, now: float, counts: Mapping[str, int], devices: Sequence[int], waiting: Mapping[str, int] | None = None
    ) -> Cause | None:
        """What happened since the last call (``now`` in seconds); a reason to plan anew, or None."""
        before, self._now = self._now, now
        seconds = 0.0 if before is None else now - before
        if seconds > 0:
            for model, target in self._targets.items():
                target.add(now, counts.get(model, 0), seconds)
        known, self._devices = self._devices, tuple(sorted(devices))
        used = {gpu.index for gpu in self.in_force.gpus} if self.in_force is not None else set()
        lost = sorted(used - set(self._devices)) if set(known) - set(self._devices) or before is None else []
        back = sorted(set(self._devices) - set(known)) if self._in_overload else []
        if lost or back:
            return self._devices_cause(lost, back)
        if self._asked or not self._targets:
            return None
        if self.in_force is None:
            return Cause("start", "the first plan", emergency=True) if self._devices else None
        return self._emergency(now, seconds, waiting or {}) or self._periodic(now)

    def _emergency(self, now: float, seconds: float, waiting: Mapping[str, int]) -> Cause | None:
        long = self._queue(now, waiting, seconds)
        if now - self._planned_at < self.settings.emergency_gap_s:
            return long
        if self._changed:
            return Cause("rates", "models or devices came or went", emergency=True)
        return long or self._overload(seconds)

    def _periodic(self, now: float) -> Cause | None:
        if now - max(self._planned_at, self._reviewed_at) < self.settings.period_s:
            return None
        self._reviewed_at = now
        self._recover(now)
        moved = [t.demand.model for t in self._targets.values() if t.review(self.settings.horizon_s)]
        return Cause("rates", f"other rates: {', '.join(moved)}") if moved else None

    def question(self, cause: Cause) -> Question:
        """What to ask for; until `adopted` or `failed` only devices are a reason to ask again."""
        self._asked = True
        return Question(cause, self.demands, self._devices, self.in_force, self.settings)

    def started_with(self, plan: Plan, now: float) -> None:
        """This plan is in force, made before there was a controller."""
        self.in_force = plan
        self._planned_at = now
        self._planned_for = {demand.model: demand.rate for demand in plan.demands}
        self._changed = self._planned_for.keys() != self._targets.keys()
        self._devices = self._devices or tuple(gpu.index for gpu in plan.gpus)

    def adopted(self, proposal: Proposal, now: float) -> None:
        """The proposed plan is in force; without a plan the old one stays until something else changes."""
        self._asked = False
        if proposal.plan is not None:
            self.in_force = proposal.plan
        self._planned_at = now
        self._planned_for = {demand.model: demand.rate for demand in proposal.question.demands}
        self._changed = self._planned_for.keys() != self._targets.keys()
        self._in_overload = proposal.overload
        if self.in_force is not None:  # a device of this plan died while it was applied
            self._changed |= not {gpu.index for gpu in self.in_force.gpus} <= set(self._devices)
        self._long_queues.clear()

    def failed(self, now: float) -> None:
        """The plan could not be made or applied: soon there is a reason again."""
        self._asked = False
        self._planned_at = now
        self._changed = True

    def _devices_cause(self, lost: list[int], back: list[int]) -> Cause:
        self._changed = True
        message = [f"device {number} is lost" for number in lost] + [f"device {number} is back" for number in back]
        return Cause("devices", ", ".join(message), emergency=True)

    def _overload(self, seconds: float) -> Cause | None:
        """Rates that the plan in force cannot serve, beyond chance: in the last interval, or in the last seconds."""
        if seconds <= 0 or self.in_force is None:
            return None
        hot = []
        for model, target in self._targets.items():
            can = capacity(self.in_force, model) / target.slower
            meter = target.meter
            # The last term is for counts of a few requests, which go further up than a normal distribution does.
            chance = SURE * meter.variation * sqrt(max(can, 1.0) / seconds) + SURE**2 * meter.variation**2 / 6 / seconds
            sudden = meter.last > can + chance
            if sudden or meter.fast > can + SURE * meter.error(FAST_S):
                # A count of so short a time errs; what it lacks would cost a second emergency.
                seen = meter.last + meter.error(seconds / 2) if sudden else meter.fast
                hot.append(f"{model}: {seen:.4g} requests/s, the plan serves {can:.4g}")
                target.leap(max(seen, meter.ahead(self.settings.horizon_s)))
        return Cause("overload", "; ".join(hot), emergency=True) if hot and self._could_be_better() else None

    def _could_be_better(self) -> bool:
        """False where the plan in force was made for nearly these demands: planning again brings nothing."""
        rise = RISE_IN_OVERLOAD if self._in_overload else RISE
        return any(demand.rate > rise * self._planned_for.get(demand.model, 0.0) for demand in self.demands)

    def _queue(self, now: float, waiting: Mapping[str, int], seconds: float) -> Cause | None:
        """Queues that grow though the rates are as planned: the device is slower than its profile."""
        if seconds <= 0 or self.in_force is None:
            return None
        long = []
        for model, target in self._targets.items():
            bearable = QUEUE_PART * capacity(self.in_force, model) * target.demand.slo_ms / 1000
            if waiting.get(model, 0) <= max(QUEUE_LEAST, bearable):
                self._long_queues.pop(model, None)
                continue
            self._long_queues[model] = self._long_queues.get(model, 0.0) + seconds
            if self._long_queues[model] >= QUEUE_S - 1e-6 and target.slower < SLOWER_MOST:
                long.append(f"{model}: {waiting[model]} requests wait")
                target.slower = min(SLOWER_MOST, target.slower * SLOWER_STEP)
                self._slowed_at[model] = now
                target.leap(target.meter.last)
                self._long_queues.pop(model)
        return Cause("queue", "; ".join(long), emergency=True) if long else None

    def _recover(self, now: float) -> None:
        """A model that was slower than its profile a while ago gets another chance."""
        for model, since in list(self._slowed_at.items()):
            if now - since >= SLOWER_HOLD_S:
                target = self._targets.get(model)
                if target is not None:
                    target.slower = max(1.0, target.slower / SLOWER_STEP)
                if target is None or target.slower == 1.0:
                    del self._slowed_at[model]
                else:
                    self._slowed_at[model] = now


def capacity(plan: Plan, model: str) -> float:
    """Requests/s of this model that the plan's gpu-lets can take."""
    return sum(task.capacity for task in plan.tasks() if task.model == model)
