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
from gemlet.serve.plan.model import Demand, Gpu, Infeasible, Plan, PlannedGpuLet, PlanOptions
from gemlet.serve.profiles import kinds
from gemlet.serve.profiles.profile import Profiles
from gemlet.serve.server.fleet import whole_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.profiles.kinds import Known

# Parts of its equal share that a model is planned for, the first that can be planned: shares do not add up exactly, and
# two batches fit into an SLO where one would fill the device.
FACTORS = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05, 0.01)
SMALLEST = 0.01
BY_CONFIGURATION, WHOLE = "configuration", "whole"  # in place of a policy


def planned_by_profiles(specs: Sequence[ModelSpec], known: Known | None) -> bool:
    """Whether the planner, and later the controller, may decide."""
    served = [spec for spec in specs if spec.platform != "noop"]
    there = kinds.models(known)
    return bool(served) and all(spec.sm is None and spec.label in there for spec in served)


def demands_of(
    specs: Sequence[ModelSpec], known: Known, factor: float = 1.0, devices: Sequence[int] = (0,)
) -> list[Demand]:
    """For each model the rate that it could be served with on ``factor`` of an equal part of these devices."""
    served = [spec for spec in specs if spec.platform != "noop"]
    return [
        Demand(model=spec.label, slo_ms=spec.slo_ms, rate=factor * _capacity(spec, known, devices) / len(served))
        for spec in served
    ]


def make(
    specs: Sequence[ModelSpec],
    known: Known | None,
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
        plan = _named(by_configuration(served, devices, apart=apart), known)
        note = f"not planned for the rates given: {_unplanned(served, known)}"
        return msgspec.structs.replace(plan, notes=(note,)) if demands else plan
    inventory = planner.inventory(known, devices)
    wanted = [list(demands)] if demands else []
    if fill or not demands:
        equal = [demands_of(specs, known, factor, devices) for factor in FACTORS]
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
    plan = _named(by_configuration(served, devices, apart=apart), known)
    note = f"no plan holds: {'; '.join(why)}; every model takes turns on whole devices"
    of, origin = kinds.title(known), kinds.origin(known)
    return Plan(policy=WHOLE, device=of, origin=origin, gpus=plan.gpus, demands=(), notes=(note,))


def basis(
    plan: Plan, specs: Sequence[ModelSpec], known: Known | None, learned: AbstractSet[str] = frozenset()
) -> dict[str, str]:
    """What the plan in force rests on, and which of these models have a profile, in words.

    learned: labels of those among ``known`` whose profile is from their own batches here.
    """
    served = [spec for spec in specs if spec.platform != "noop"]
    labels = [spec.label for spec in served]
    several = isinstance(known, kinds.ProfilesByKind)
    told = [
        (f"{kind}: " if several else "") + _profiled(each, labels, learned)
        for kind, each in kinds.by_kind(known).items()
    ]
    profiles = "; ".join(told) or "none"
    if plan.policy == BY_CONFIGURATION:
        why = _unplanned(served, known) if not planned_by_profiles(specs, known) else ""
        return {"profiles": profiles, "plan": "the configuration" + (f": {why}" if why else "")}
    if plan.policy == WHOLE:
        return {"profiles": profiles, "plan": "the configuration, since no plan holds"}
    planned = {task.model for task in plan.tasks()} & set(kinds.models(known))
    resting = [_resting(plan, known)] if planned - learned else []
    resting += [_learned(label for label in labels if label in planned & learned)] if planned & learned else []
    return {"profiles": profiles, "plan": f"policy {plan.policy}, {'; '.join(resting) or f'profiles of {plan.device}'}"}


def _profiled(known: Profiles, labels: Sequence[str], learned: AbstractSet[str]) -> str:
    """Which of these models have a profile for one kind of device, in words."""
    there = [label for label in labels if label in known.models]
    with_profile = [label for label in there if label not in learned]
    told: str = known.origin if with_profile else ""
    if with_profile and len(with_profile) < len(labels):
        told += f", of {', '.join(with_profile)} only"
    from_batches = [label for label in there if label in learned]
    return "; ".join([*([told] if told else []), *([_learned(from_batches)] if from_batches else [])]) or "none"


def _learned(labels: Iterable[str]) -> str:
    return f"learned from its batches: {', '.join(labels)}"


def _resting(plan: Plan, known: Known | None) -> str:
    """The profiles that the plan was made with."""
    used = {gpu.device for gpu in plan.gpus}
    several = known.kinds if isinstance(known, kinds.ProfilesByKind) else {}
    return " and ".join(f"{each.origin} profiles of {kind}" for kind, each in several.items() if kind in used) or (
        f"{plan.origin} profiles of {plan.device}"
    )


def _named(plan: Plan, known: Known | None) -> Plan:
    """With the kind of each device, where there are several."""
    gpus = (msgspec.structs.replace(gpu, device=kinds.kind_of(known, gpu.index)) for gpu in plan.gpus)
    return msgspec.structs.replace(plan, gpus=tuple(gpus))


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
    gpus = (msgspec.structs.replace(gpu, index=devices[gpu.index]) for gpu in plan.gpus)
    return msgspec.structs.replace(plan, gpus=tuple(gpus))


def _unplanned(served: Sequence[ModelSpec], known: Known | None) -> str:
    """Why nothing is planned for these models."""
    fixed = [spec.label for spec in served if spec.sm is not None]
    unknown = [spec.label for spec in served if spec.label not in kinds.models(known)]
    reasons = [f"there is no profile of {' and '.join(unknown)} for this device"] if unknown else []
    reasons += [f"`sm` is set for {' and '.join(fixed)}"] if fixed else []
    return "; ".join(reasons)


def _gpu_let(share: float, specs: Sequence[ModelSpec]) -> PlannedGpuLet:
    return PlannedGpuLet(
        sm=min(1.0, share), duty_ms=0.0, occupancy=0.0, tasks=tuple(whole_task(spec) for spec in specs)
    )


def _capacity(spec: ModelSpec, known: Known, devices: Sequence[int]) -> float:
    """Requests/s on these devices as a whole; none on those of a kind without a profile of the model."""
    if isinstance(known, Profiles):
        return len(devices) * _of_device(spec, known)
    there = [kinds.on(known, device) for device in devices]
    return sum(_of_device(spec, profiles) for profiles in there if spec.label in profiles.models)


def _of_device(spec: ModelSpec, known: Profiles) -> float:
    """Requests/s on a whole device with batches of which two fit into the SLO; with batches of one if none do."""
    row = known.models[spec.label].surface.row(1.0)
    fitting = [batch for batch in range(1, len(row)) if 2 * row[batch] <= spec.slo_ms]
    batch = min(fitting[-1] if fitting else 1, max(1, spec.max_batch))
    return 1000 * batch / row[batch]
