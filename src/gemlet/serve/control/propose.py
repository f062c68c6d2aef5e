"""The plan for what the controller asks: pure, and made of plain data, so that another process can answer.

Planning takes tens of milliseconds of Python, and a server that answers within one millisecond cannot spare these.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING

from gemlet.serve.control import difference, overload, slots
from gemlet.serve.plan.model import Demand, Infeasible, Plan, PlanOptions
from gemlet.serve.plan.planner import grid_of, inventory
from gemlet.serve.plan.search.timing import Timing
from gemlet.serve.profiles import kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.control.settings import Cause, ControlSettings
    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import Profiles


@dataclass(frozen=True, slots=True)
class Question:
    """Which plan for ``demands`` on the living ``devices``, where ``in_force`` is?"""

    cause: Cause
    demands: tuple[Demand, ...]
    devices: tuple[int, ...]
    in_force: Plan | None
    settings: ControlSettings


@dataclass(frozen=True, slots=True)
class Proposal:
    """``plan`` None: nothing can be served with these devices. ``devices``: how many would be right.

    overload: there is no plan for all that was asked; ``part`` of every rate is planned for then. stages: the plans to
    bring into force one after the other, ``plan`` last; more than one where old and new weights do not fit into a
    device's memory together.
    """

    question: Question
    plan: Plan | None
    devices: int
    part: float = 1.0
    notes: tuple[str, ...] = ()
    overload: bool = False
    stages: tuple[Plan, ...] = ()


def answer(profiles: Known, question: Question, plan: overload.Planner) -> Proposal:
    settings = question.settings
    devices = question.devices[: settings.most]
    most = max(settings.least, settings.most or len(devices))
    if not devices:
        return Proposal(question, None, settings.least, 0.0, ("no device lives",), overload=True)
    if not question.demands:
        return Proposal(question, None, settings.least, 0.0, ("no model is demanded",))
    previous = slots.to_slots(question.in_force, devices) if question.in_force is not None else None

    def attempt(demands: Sequence[Demand], options: PlanOptions) -> Plan | Infeasible:
        return plan(profiles, demands, inventory(profiles, devices), previous, options, policy=settings.policy)

    least = least_devices(profiles, question.demands, settings.planner)
    made: Plan | Infeasible
    if least > len(devices):  # the planner would find that out, too, and take long where the rates are absurd
        made = Infeasible(policy=settings.policy, needed=ceil(least), why=(f"{least:.4g} devices are needed at least",))
    else:
        made = attempt(question.demands, settings.planner)
    if isinstance(made, Plan):
        wanted = min(most, max(settings.least, len(made.gpus)))
        chosen = slots.to_devices(made, devices)
        return Proposal(question, chosen, wanted, notes=made.notes, stages=_stages(profiles, question.in_force, chosen))
    less = overload.best_effort(attempt, question.demands, settings.planner, most=len(devices) / max(least, 1e-9))
    wanted = min(most, max(settings.least, made.needed or len(devices)))
    if less.plan is None:
        return Proposal(question, None, wanted, less.part, (*less.notes, *made.why), overload=True)
    chosen = slots.to_devices(less.plan, devices)
    stages = _stages(profiles, question.in_force, chosen)
    return Proposal(question, chosen, wanted, less.part, (*less.notes, *made.why), overload=True, stages=stages)


def least_devices(known: Known, demands: Sequence[Demand], options: PlanOptions) -> float:
    """What the rates cost if gpu-lets could be cut to measure, each on the kind of device that is best for it; models
    that nothing can serve in time cost nothing."""
    costs = [_costs(profiles, demands, options) for profiles in kinds.by_kind(known).values()]
    least = [min(cost.get(demand.model, inf) for cost in costs) for demand in demands]
    return sum(cost for cost in least if isfinite(cost))


def _costs(profiles: Profiles, demands: Sequence[Demand], options: PlanOptions) -> dict[str, float]:
    there = [demand for demand in demands if demand.model in profiles.models]
    timing = Timing(profiles, {demand.model: demand.slo_ms for demand in there}, grid_of(profiles, options))
    return {demand.model: timing.fluid_ticks(demand.model, demand.rate) / timing.grid for demand in there}


def _stages(known: Known, old: Plan | None, new: Plan) -> tuple[Plan, ...]:
    planned = {gpu.index: gpu for gpu in new.gpus}

    def fits(device: int, models: frozenset[str]) -> bool:
        """The needs of the new plan there, and the weights that are still there beside it."""
        gpu, profiles = planned[device], kinds.on(known, device)
        staying = {task.model for gpu_let in gpu.gpu_lets for task in gpu_let.tasks}
        leaving = [profiles.models[model].weights_mib for model in models - staying if model in profiles.models]
        return gpu.memory_mib + sum(leaving) <= profiles.device.memory_mib

    return difference.stages(old, new, fits=fits)
