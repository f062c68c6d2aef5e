"""The plan that a server starts with if none was given. Pure.

With a profile of every model and nothing said about shares, the planner makes it: for the rates of a demand file, or,
where nobody knows the rates yet, for an equal part of the devices for each model. Otherwise the configuration decides:
a model with ``sm`` has a gpu-let of that share for itself, the others take turns on what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.config.quantities import format_share
from gemlet.errors import UsageError
from gemlet.serve.control.propose import least_devices
from gemlet.serve.plan import planner
from gemlet.serve.plan.model import Demand, Gpu, Infeasible, Inventory, Plan, PlannedGpuLet, PlanOptions
from gemlet.serve.server.fleet import whole_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.profiles.profile import Profiles

# Parts of its equal share that a model is planned for, the first that can be planned: shares do not add up exactly, and
# two batches fit into an SLO where one would fill the device.
FACTORS = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05, 0.01)
SMALLEST = 0.01
BY_CONFIGURATION, WHOLE = "configuration", "whole"  # in place of a policy


def planned_by_profiles(specs: Sequence[ModelSpec], known: Profiles | None) -> bool:
    """Whether the planner, and later the controller, may decide."""
    served = [spec for spec in specs if spec.platform != "noop"]
    return bool(served) and known is not None and all(spec.sm is None and spec.label in known.models for spec in served)


def demands_of(specs: Sequence[ModelSpec], known: Profiles, factor: float = 1.0, devices: int = 1) -> list[Demand]:
    """For each model the rate that it could be served with on ``factor`` of an equal part of this many devices."""
    served = [spec for spec in specs if spec.platform != "noop"]
    return [
        Demand(model=spec.label, slo_ms=spec.slo_ms, rate=factor * devices * _capacity(spec, known) / len(served))
        for spec in served
    ]


def make(
    specs: Sequence[ModelSpec],
    known: Profiles | None,
    devices: Sequence[int],
    *,
    demands: Sequence[Demand] = (),
    options: PlanOptions | None = None,
    policy: str = "nway+type",
    apart: bool = False,
    fill: bool = False,
) -> Plan:
    """A plan for these models on devices of these indices. Raises UsageError where shares do not fit.

    fill: models that ``demands`` do not name get what is left of an equal part; without it they are an error.
    apart: where the configuration decides, models without ``sm`` share what is left equally, and do not take turns.
    """
    served = [spec for spec in specs if spec.platform != "noop"]
    if known is None or not planned_by_profiles(specs, known):
        plan = by_configuration(served, devices, apart=apart)
        note = f"not planned for the rates given: {_unplanned(served, known)}"
        return msgspec.structs.replace(plan, notes=(note,)) if demands else plan
    inventory = Inventory(gpus=len(devices))
    wanted = [list(demands)] if demands else []
    if fill or not demands:
        equal = [demands_of(specs, known, factor, len(devices)) for factor in FACTORS]
        named = {demand.model for demand in demands}
        others = [[each for each in part if each.model not in named] for part in equal]
        wanted = [[*demands, *each] for each in others if each] or wanted
        if demands and least_devices(known, demands, options or PlanOptions()) > len(devices):
            wanted = equal  # nothing holds, and to find that out may take the planner long
        elif demands:
            wanted += equal
    why: tuple[str, ...] = ()
    for demanded in wanted:
        made = planner.plan(known, demanded, inventory, None, options, policy=policy)
        if not isinstance(made, Infeasible):
            return _complete(made, served, devices)
        why = made.why
    plan = by_configuration(served, devices, apart=apart)
    note = f"no plan holds: {'; '.join(why)}; every model takes turns on whole devices"
    return Plan(policy=WHOLE, device=known.device.name, origin=known.origin, gpus=plan.gpus, demands=(), notes=(note,))


def basis(
    plan: Plan, specs: Sequence[ModelSpec], known: Profiles | None, learned: AbstractSet[str] = frozenset()
) -> dict[str, str]:
    """What the plan in force rests on, and which of these models have a profile, in words.

    learned: labels of those among ``known`` whose profile is from their own batches here.
    """
    served = [spec for spec in specs if spec.platform != "noop"]
    there = [spec.label for spec in served if known is not None and spec.label in known.models]
    with_profile = [label for label in there if label not in learned]
    profiles: str = known.origin if known is not None and with_profile else "none"
    if with_profile and len(with_profile) < len(served):
        profiles += f", of {', '.join(with_profile)} only"
    from_batches = [label for label in there if label in learned]
    words = f"learned from its batches: {', '.join(from_batches)}"
    if from_batches:
        profiles = f"{profiles}; {words}" if with_profile else words
    if plan.policy == BY_CONFIGURATION:
        why = _unplanned(served, known) if not planned_by_profiles(specs, known) else ""
        return {"profiles": profiles, "plan": "the configuration" + (f": {why}" if why else "")}
    if plan.policy == WHOLE:
        return {"profiles": profiles, "plan": "the configuration, since no plan holds"}
    planned = {task.model for task in plan.tasks()}
    resting = f"{plan.origin} profiles of {plan.device}" if planned & set(with_profile) else ""
    if planned & set(from_batches):
        resting += f"{'; ' if resting else ''}{words}"
    return {"profiles": profiles, "plan": f"policy {plan.policy}, {resting or f'profiles of {plan.device}'}"}


def by_configuration(served: Sequence[ModelSpec], devices: Sequence[int], *, apart: bool = False) -> Plan:
    """Shares as configured, on each device if they fit into one, else spread over them. Raises UsageError."""
    own = sorted((spec for spec in served if spec.sm is not None), key=lambda spec: -(spec.sm or 0))
    rest = [spec for spec in served if spec.sm is None]
    gpu_lets: dict[int, list[PlannedGpuLet]] = {index: [] for index in devices}
    free = dict.fromkeys(devices, 1.0)
    total = sum(spec.sm or 0 for spec in own)
    everywhere = total <= 1.0 + 1e-9 and not (rest and total > 1.0 - SMALLEST)
    for spec in own:
        share = spec.sm or 0
        for index in devices if everywhere else [max(free, key=lambda index: free[index])]:
            if free[index] + 1e-9 < share:
                names = ", ".join(f"{each.label} {format_share(each.sm or 0)}" for each in own)
                hint = "lower some `sm`, or serve on more devices"
                raise UsageError(f"the shares of the models do not fit on {len(devices)} devices: {names}", hint=hint)
            gpu_lets[index].append(_gpu_let(share, [spec]))
            free[index] -= share
    if rest:
        room = [index for index in devices if free[index] >= SMALLEST]
        if not room:
            names = ", ".join(spec.label for spec in rest)
            hint = "lower some `sm`, or serve on more devices"
            raise UsageError(f"the shares of the other models leave nothing for {names}", hint=hint)
        for index in room:
            groups = [[spec] for spec in rest] if apart else [rest]
            gpu_lets[index] += [_gpu_let(free[index] / len(groups), group) for group in groups]
    gpus = tuple(
        Gpu(index=index, memory_mib=0.0, gpu_lets=tuple(gpu_lets[index])) for index in devices if gpu_lets[index]
    )
    return Plan(policy=BY_CONFIGURATION, device="", origin="", gpus=gpus, demands=())


def _complete(plan: Plan, served: Sequence[ModelSpec], devices: Sequence[int]) -> Plan:
    """The plan on the devices there are. Raises UsageError if it leaves out a model of the repository."""
    missing = [spec.label for spec in served if spec.label not in {task.model for task in plan.tasks()}]
    if missing:
        hint = "name every model of the repository in the demand file, with a rate above 0"
        raise UsageError(f"the plan has no place for {', '.join(missing)}", hint=hint)
    gpus = tuple(Gpu(index=devices[gpu.index], memory_mib=gpu.memory_mib, gpu_lets=gpu.gpu_lets) for gpu in plan.gpus)
    return msgspec.structs.replace(plan, gpus=gpus)


def _unplanned(served: Sequence[ModelSpec], known: Profiles | None) -> str:
    """Why nothing is planned for these models."""
    fixed = [spec.label for spec in served if spec.sm is not None]
    unknown = [spec.label for spec in served if known is None or spec.label not in known.models]
    reasons = [f"there is no profile of {' and '.join(unknown)} for this device"] if unknown else []
    reasons += [f"`sm` is set for {' and '.join(fixed)}"] if fixed else []
    return "; ".join(reasons)


def _gpu_let(share: float, specs: Sequence[ModelSpec]) -> PlannedGpuLet:
    return PlannedGpuLet(
        sm=min(1.0, share), duty_ms=0.0, occupancy=0.0, tasks=tuple(whole_task(spec) for spec in specs)
    )


def _capacity(spec: ModelSpec, known: Profiles) -> float:
    """Requests/s on a whole device with batches of which two fit into the SLO; with batches of one if none do."""
    row = known.models[spec.label].surface.row(1.0)
    fitting = [batch for batch in range(1, len(row)) if 2 * row[batch] <= spec.slo_ms]
    batch = min(fitting[-1] if fitting else 1, max(1, spec.max_batch))
    return 1000 * batch / row[batch]
