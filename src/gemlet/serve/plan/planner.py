"""`plan`: places demands on devices by a policy. Pure: the same input gives the same plan."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from gemlet.errors import InvalidValue
from gemlet.serve.plan import demand, explain, keep, several_kinds
from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions
from gemlet.serve.plan.policies import find
from gemlet.serve.plan.search.draft import Draft
from gemlet.serve.plan.search.timing import Timing
from gemlet.serve.profiles import kinds
from gemlet.serve.profiles.profile import Profiles, delayed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.profiles.kinds import Known, ProfilesByKind

PLANS = 4  # that the work on a plan of several kinds is divided among
SEARCHED_GPUS, SEARCHED_FACTOR = 64, 4  # how many devices, and how many times those there are, a search may need


def plan(
    profiles: Known,
    demands: Sequence[Demand],
    there: Inventory,
    previous: Plan | None = None,
    options: PlanOptions | None = None,
    *,
    policy: str = "nway+type",
) -> Plan | Infeasible:
    """Places ``demands`` on the devices that are ``there``; ``previous`` is kept where that is good enough.

    Raises InvalidValue for what makes no sense (an unknown model or policy, a negative rate, an SLO of zero). What
    makes sense and cannot be done is Infeasible, and says why.
    """
    options = options or PlanOptions()
    demand.check(kinds.models(profiles), demands, there, find(policy).adapt(options))
    if isinstance(profiles, Profiles):
        return _on_one_kind(profiles, demands, there, previous, options=options, policy=policy)
    names = dict.fromkeys(name for name in there.kinds if name in profiles.kinds)
    if len(names) > 1:  # several plans are made for one
        options = msgspec.structs.replace(options, effort=options.effort // PLANS)
    found = [_kind(profiles, name, demands, there, options=options, policy=policy) for name in names]
    return several_kinds.plan(found, demands, previous, policy)


def inventory(known: Known, devices: Sequence[int], memory_mib: float | None = None) -> Inventory:
    """What can be planned on: these devices, which a plan numbers from 0."""
    each = tuple(kinds.kind_of(known, device) for device in devices) if isinstance(known, kinds.ProfilesByKind) else ()
    return Inventory(gpus=len(devices), memory_mib=memory_mib, kinds=each)


def _kind(
    known: ProfilesByKind,
    name: str,
    demands: Sequence[Demand],
    there: Inventory,
    *,
    options: PlanOptions,
    policy: str,
) -> several_kinds.Kind:
    profiles = known.kinds[name]
    slots = tuple(slot for slot, kind in enumerate(there.kinds) if kind == name)
    own = Inventory(gpus=len(slots), memory_mib=there.memory_mib)

    def planned(wanted: Sequence[Demand], previous: Plan | None) -> Plan | Infeasible:
        return _on_one_kind(profiles, wanted, own, previous, options=options, policy=policy)

    able = [each for each in demands if each.model in profiles.models]
    return several_kinds.Kind(name, slots, _costs(profiles, able, own, find(policy).adapt(options)), planned)


def _costs(
    profiles: Profiles, demands: Sequence[Demand], inventory: Inventory, options: PlanOptions
) -> dict[str, float]:
    """Devices that each demand would take if gpu-lets could be cut to measure; infinite for those without hope."""
    draft, planned, _ = _draft(profiles, demands, inventory, options)
    costs = {each.model: 0.0 for each in demands}
    for each in planned:
        ticks = draft.timing.fluid_ticks(each.model, each.rate)
        costs[each.model] = inf if demand.hopeless(draft, [each]) else ticks / draft.grid
    return costs


def _draft(
    profiles: Profiles, demands: Sequence[Demand], inventory: Inventory, options: PlanOptions
) -> tuple[Draft, list[Demand], list[str]]:
    """An empty draft, the demands with headroom, and notes on them."""
    if options.hop_ms:
        profiles = delayed(profiles, options.hop_ms)
    planned, notes = demand.with_headroom(demands, options)
    timing = Timing(profiles, {d.model: d.slo_ms for d in planned}, grid_of(profiles, options))
    return Draft(timing, options, inventory), planned, notes


def _on_one_kind(
    profiles: Profiles,
    demands: Sequence[Demand],
    inventory: Inventory,
    previous: Plan | None,
    *,
    options: PlanOptions,
    policy: str,
) -> Plan | Infeasible:
    chosen = find(policy)
    wanted = chosen.adapt(options)
    if wanted.linear is not None and chosen.types:
        raise InvalidValue(
            f"policy {policy} rests on gemlet's model of interference, and linear is another",
            hint="choose gpulet, or leave out linear",
        )
    draft, planned, notes = _draft(profiles, demands, inventory, wanted)
    hopeless = demand.hopeless(draft, planned)
    if hopeless:
        return Infeasible(policy=policy, why=tuple(hopeless))
    least = demand.least_gpus(draft, planned)
    if least > max(SEARCHED_GPUS, SEARCHED_FACTOR * inventory.gpus):  # a search of that size takes minutes, in vain
        return Infeasible(policy=policy, needed=least, why=demand.too_few(draft, planned, inventory.gpus, least))
    if previous is not None and chosen.keeps:
        kept = keep.keep(previous, draft, planned, demands, policy=policy, gpus=inventory.gpus)
        if kept is not None:
            return kept
    if previous is not None and chosen.fixed:
        draft.gpus = keep.gpu_lets_of(previous, draft.grid)
    failure = chosen.pack(draft, planned, inventory.gpus)
    draft.gpus = [gpu for gpu in draft.gpus if any(gpu_let.rates for gpu_let in gpu)]
    if failure:
        return Infeasible(policy=policy, why=tuple(failure))
    if len(draft.gpus) > inventory.gpus:
        needed = len(draft.gpus)
        return Infeasible(policy=policy, needed=needed, why=demand.too_few(draft, planned, inventory.gpus, needed))
    explain.explain(draft)
    made = draft.finish(policy, demands, notes)
    return keep.align(made, previous, inventory.gpus) if previous is not None else made


def grid_of(profiles: Profiles, options: PlanOptions) -> int:
    """Ticks of a device: as asked for, else as many as it has groups of SMs. Raises InvalidValue."""
    if options.grid == 0:
        return profiles.device.groups or max(1, profiles.device.sms // profiles.device.sm_step)
    if not 1 <= options.grid <= 100:
        raise InvalidValue(f"grid {options.grid} is not in 1..100", hint="write 10 for sizes that are multiples of 10%")
    return options.grid
