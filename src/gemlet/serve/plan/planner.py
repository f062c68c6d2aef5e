"""`plan`: places demands on devices by a policy. Pure: the same input gives the same plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.errors import InvalidValue
from gemlet.serve.plan import demand, explain, keep
from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions
from gemlet.serve.plan.policies import find
from gemlet.serve.plan.search.draft import Draft
from gemlet.serve.plan.search.timing import Timing
from gemlet.serve.profiles.profile import delayed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.profiles.profile import Profiles

SEARCHED_GPUS, SEARCHED_FACTOR = 64, 4  # how many devices, and how many times those there are, a search may need


def plan(
    profiles: Profiles,
    demands: Sequence[Demand],
    inventory: Inventory,
    previous: Plan | None = None,
    options: PlanOptions | None = None,
    *,
    policy: str = "nway+type",
) -> Plan | Infeasible:
    """Places ``demands`` on the devices of ``inventory``; ``previous`` is kept where that is good enough.

    Raises InvalidValue for what makes no sense (an unknown model or policy, a negative rate, an SLO of zero). What
    makes sense and cannot be done is Infeasible, and says why.
    """
    chosen = find(policy)
    wanted = chosen.adapt(options or PlanOptions())
    demand.check(profiles, demands, inventory, wanted)
    if wanted.linear is not None and chosen.types:
        raise InvalidValue(
            f"policy {policy} rests on gemlet's model of interference, and linear is another",
            hint="choose gpulet, or leave out linear",
        )
    if wanted.hop_ms:
        profiles = delayed(profiles, wanted.hop_ms)
    planned, notes = demand.with_headroom(demands, wanted)
    timing = Timing(profiles, {d.model: d.slo_ms for d in planned}, grid_of(profiles, wanted))
    draft = Draft(timing, wanted, inventory)
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
