"""Staying near the previous plan: every gpu-let that moves costs loading and a change of contexts."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from gemlet.serve.plan import explain
from gemlet.serve.plan.search import pooling
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet, pools_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand, Gpu, Plan

RISE, FALL = 1.05, 0.85  # a plan is kept while each rate is within these of what it was made for
WORTH = 0.9  # of what the best pools sustain: less is worth the change


def keep(
    previous: Plan, draft: Draft, planned: Sequence[Demand], demands: Sequence[Demand], *, policy: str, gpus: int
) -> Plan | None:
    """``previous`` at the new rates if it was made the same way for nearly these demands and still holds, or None.

    ``planned`` are the demands with headroom, ``gpus`` the devices that there are.
    """
    same_way = previous.policy == policy and previous.device == draft.profiles.device.name
    fits = all(gpu.index < gpus for gpu in previous.gpus) and _on_grid(previous, draft.grid)
    gpu_lets = gpu_lets_of(previous, draft.grid)
    made_for = previous.made_for or previous.demands
    # A slow fall is near at every step; what was made for other rates altogether would be kept for ever.
    near = _near(previous.demands, demands, RISE, FALL) and _near(made_for, demands, inf, FALL)
    if not (same_way and fits and (near or _elastic(previous, made_for, demands))):
        return None
    wanted = {d.model: d.rate for d in planned}
    totals = dict.fromkeys(wanted, 0.0)
    for gpu_let in (gpu_let for gpu in gpu_lets for gpu_let in gpu):
        for model, rate in gpu_let.rates.items():
            totals[model] = totals.get(model, 0.0) + rate
    if set(totals) != set(wanted) or not all(totals.values()):
        return None
    for gpu in gpu_lets:
        for gpu_let in gpu:
            gpu_let.rates = {model: rate * wanted[model] / totals[model] for model, rate in gpu_let.rates.items()}
        if any(gpu_let.pool for gpu_let in gpu) and not pooling.allowed(
            draft, {model for gpu_let in gpu for model in gpu_let.rates}
        ):
            return None
        if sum(gpu_let.ticks for gpu_let in gpu) > draft.grid + SLACK or not draft.holds(gpu):
            return None
        if not near and not _sustains_bursts(draft, gpu):
            return None
    numbers = [gpu.index for gpu in previous.gpus if any(gpu_let.tasks for gpu_let in gpu.gpu_lets)]
    draft.gpus = gpu_lets
    explain.explain(draft)
    made = draft.finish(policy, demands, (_why(near),))
    return msgspec.structs.replace(made, kept=True, made_for=made_for, gpus=_indexed(made.gpus, numbers))


def _why(near: bool) -> str:
    if near:
        return "kept: the rates are near those the previous plan was made for"
    return "kept: its pools sustain the new rates"


def _elastic(previous: Plan, made_for: Sequence[Demand], demands: Sequence[Demand]) -> bool:
    """Pools only, which sustain other rates as they are; several devices only if the rates did not fall for all."""
    if not all(gpu_let.pool for gpu in previous.gpus for gpu_let in gpu.gpu_lets):
        return False
    before = {demand.model: demand.rate for demand in made_for}
    fell = all(demand.rate < FALL * before.get(demand.model, 0.0) for demand in demands if demand.rate > 0)
    return _near(made_for, demands, inf, 0.0) and (len(previous.gpus) == 1 or not fell)


def _sustains_bursts(draft: Draft, gpu: DraftGpu) -> bool:
    """Whether these pools sustain their rates with bursts, or others would hardly sustain more."""
    sustains = draft.sustains(pools_of(gpu))
    return sustains >= 1 or sustains >= WORTH * pooling.most_sustained(draft, pooling.demanded(draft, gpu))


def _near(before: Sequence[Demand], now: Sequence[Demand], rise: float, fall: float) -> bool:
    """The same models and SLOs, each rate within these of what it was."""
    old = {d.model: d for d in before if d.rate > 0}
    new = {d.model: d for d in now if d.rate > 0}
    return set(old) == set(new) and all(
        old[model].slo_ms == demand.slo_ms
        and old[model].variation == demand.variation
        and fall * old[model].rate <= demand.rate <= rise * old[model].rate
        for model, demand in new.items()
    )


def _on_grid(plan: Plan, grid: int) -> bool:
    return all(
        abs(round(gpu_let.sm * grid) - gpu_let.sm * grid) < 1e-3 for gpu in plan.gpus for gpu_let in gpu.gpu_lets
    )


def gpu_lets_of(plan: Plan, grid: int) -> list[DraftGpu]:
    """The gpu-lets of a plan that serve something, as a draft on this grid."""
    return [
        [
            DraftGpuLet(
                max(1, round(gpu_let.sm * grid)), {task.model: task.rate for task in gpu_let.tasks}, pool=gpu_let.pool
            )
            for gpu_let in gpu.gpu_lets
            if gpu_let.tasks
        ]
        for gpu in plan.gpus
    ]


def align(made: Plan, previous: Plan, gpus: int) -> Plan:
    """``made`` with its devices numbered so that as much as possible stays where it was."""
    pairs = sorted(
        (-_overlap(new, old), new.index, old.index) for new in made.gpus for old in previous.gpus if old.index < gpus
    )
    numbers: dict[int, int] = {}
    for gain, new, old in pairs:
        if gain < 0 and new not in numbers and old not in numbers.values():
            numbers[new] = old
    free = iter(number for number in range(gpus) if number not in numbers.values())
    indices = [numbers[gpu.index] if gpu.index in numbers else next(free) for gpu in made.gpus]
    return msgspec.structs.replace(made, gpus=tuple(sorted(_indexed(made.gpus, indices), key=lambda gpu: gpu.index)))


def _overlap(one: Gpu, other: Gpu) -> float:
    """SM share of gpu-lets that have the same models on both; the same size counts in full, another by its smaller."""
    left = [(tuple(task.model for task in gpu_let.tasks), gpu_let.sm) for gpu_let in other.gpu_lets]
    shared = 0.0
    for gpu_let in one.gpu_lets:
        models = tuple(task.model for task in gpu_let.tasks)
        alike = [entry for entry in left if entry[0] == models]
        if alike:
            best = min(alike, key=lambda entry: abs(entry[1] - gpu_let.sm))
            shared += min(best[1], gpu_let.sm)
            left.remove(best)
    return round(shared, 6)


def _indexed(gpus: Sequence[Gpu], indices: Sequence[int]) -> tuple[Gpu, ...]:
    return tuple(msgspec.structs.replace(gpu, index=index) for gpu, index in zip(gpus, indices, strict=True))
