"""`gpulet`: elastic partitioning of Choi et al. (USENIX ATC 2022), re-implemented from its description.

At most two gpu-lets on a device, of 20, 40, 50, 60, 80 or 100 %. Models in ascending rate x SLO; each asks for gpu-lets
at the knee of its throughput until the rest fits a smaller one, which first tries to take turns with others; best fit
over what is free, splitting whole devices; what finds no place is put on the largest free gpu-lets, then merged, then
takes turns.

Where the artifact and the paper differ, or the artifact is plainly mistaken, this follows the paper: a knee may be at
100 %, small rates are served, an SLO is judged at the size a gpu-let really gets. Interference comes from the profiles'
vectors in place of the artifact's fitted constants. One rule decides for every policy here whether a gpu-let serves its
models.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gemlet.serve.plan.search import packing
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand

SIZES = (2, 4, 5, 6, 8, 10)  # in tenths of a device: what glet's partitions are
SMALL_GAIN = 1.05  # steps of throughput below this are no knee
PASSES = 4  # over what interference has taken away
MARGINS = (1.0, 1.1, 1.25)  # rates to pack for, so that neighbours who come later find something to take away


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """The first number of devices, from one upwards, on which all demands find a place."""
    order = sorted(demands, key=lambda d: (d.rate * d.slo_ms, d.model))
    failure = ""
    for count in range(1, gpus + 1):
        for margin in MARGINS[: 1 if draft.alone else None]:
            draft.gpus = [[] for _ in range(count)]
            failure = _attempt(draft, [(d.model, d.rate * margin) for d in order])
            if not failure:
                _scale(draft, 1 / margin)
                failure = _unserved(draft)
            if not failure:
                return []
    return [f"elastic partitioning finds no place for all of {failure} on {gpus} GPU{'s' * (gpus > 1)}"]


def _attempt(draft: Draft, wants: list[tuple[str, float]]) -> str:
    """Places all; what new neighbours take away is placed again, a few times. Returns a model that failed, or ""."""
    for _ in range(PASSES):
        lost: dict[str, float] = {}
        for model, rate in wants:
            if not _place_demand(draft, model, rate, lost):
                return model
        wants = [(model, rate) for model, rate in lost.items() if rate > SLACK]
        if not wants:
            return ""
    return wants[0][0]


def _scale(draft: Draft, factor: float) -> None:
    for gpu in draft.gpus:
        for gpu_let in gpu:
            gpu_let.rates = {model: rate * factor for model, rate in gpu_let.rates.items()}


def _unserved(draft: Draft) -> str:
    """A model of a gpu-let that does not hold, or "": turns that hold for higher rates need not hold for these."""
    for gpu in draft.gpus:
        for gpu_let in gpu:
            if draft.serve(gpu_let, [other for other in gpu if other is not gpu_let]) is None:
                return next(iter(gpu_let.rates))
    return ""


def knee(draft: Draft, model: str) -> int:
    """The size with the steepest gain of throughput over the one before it."""
    best, gain = SIZES[0], 0.0
    for low, high in pairwise(SIZES):
        before, after = draft.timing.capacity(model, low).rate, draft.timing.capacity(model, high).rate
        if before > 0 and after / before < SMALL_GAIN:
            continue
        if (after - before) / (high - low) > gain + SLACK:
            best, gain = high, (after - before) / (high - low)
    if draft.timing.capacity(model, best).rate > 0:
        return best
    return SIZES[-1]


def estimate(draft: Draft, model: str, rate: float) -> list[tuple[int, float]]:
    """The gpu-lets (ticks, rate) a model asks for."""
    size = knee(draft, model)
    full = draft.timing.capacity(model, size).rate
    wants = []
    while rate > full + SLACK:
        wants.append((size, full))
        rate -= full
    if rate > SLACK:
        fitting = [ticks for ticks in SIZES if draft.timing.capacity(model, ticks).rate >= rate]
        wants.append((min([*fitting, size]), rate))
    return wants


def _place_demand(draft: Draft, model: str, rate: float, lost: dict[str, float]) -> bool:
    before, lost_before = [[gpu_let.copy() for gpu_let in gpu] for gpu in draft.gpus], dict(lost)
    wants = sorted(estimate(draft, model, rate), reverse=True)
    if all(_join_small(draft, model, part) or _best_fit(draft, model, ticks, part, lost) for ticks, part in wants):
        return True
    draft.gpus = before
    lost.clear()
    lost.update(lost_before)
    left = _take_turns(draft, model, _merge(draft, model, _largest(draft, model, rate, lost)))
    return left <= SLACK


def _join_small(draft: Draft, model: str, rate: float) -> bool:
    """What does not fill the smallest gpu-let takes turns with others, if they sustain it."""
    if rate >= draft.timing.capacity(model, knee(draft, model)).rate - SLACK:
        return False
    return any(packing.join(draft, gpu, gpu_let, model, rate) for gpu in draft.gpus for gpu_let in gpu)


def _best_fit(draft: Draft, model: str, ticks: int, rate: float, lost: dict[str, float]) -> bool:
    """A free part of a split device with the least to spare, else a split of a whole one."""
    parts = sorted((free(gpu), place) for place, gpu in enumerate(draft.gpus) if gpu and free(gpu) >= ticks)
    for size, place in parts:
        if _put(draft, draft.gpus[place], DraftGpuLet(size, {model: rate}), lost):
            return True
    whole = next((gpu for gpu in draft.gpus if not gpu), None)
    return whole is not None and _put(draft, whole, DraftGpuLet(ticks, {model: rate}), lost)


def _largest(draft: Draft, model: str, rate: float, lost: dict[str, float]) -> float:
    """On the largest free gpu-lets, whatever they can take; returns what is left."""
    while rate > SLACK:
        free_gpus = sorted((gpu for gpu in draft.gpus if free(gpu)), key=free, reverse=True)
        for gpu in free_gpus:
            size = free(gpu) if gpu else estimate(draft, model, rate)[0][0]
            part = min(rate, draft.timing.capacity(model, size, draft.slowdown(model, gpu)).rate)
            if part > SLACK and _put(draft, gpu, DraftGpuLet(size, {model: part}), lost):
                rate -= part
                break
        else:
            return rate
    return rate


def _merge(draft: Draft, model: str, rate: float) -> float:
    """Puts the rest on a gpu-let that this model has alone and that is not full."""
    for gpu in draft.gpus:
        for gpu_let in gpu:
            if rate > SLACK and list(gpu_let.rates) == [model]:
                rate -= packing.raise_rate(draft, gpu, gpu_let, model, rate)
    return rate


def _take_turns(draft: Draft, model: str, rate: float) -> float:
    """Joins other models' gpu-lets, as much at a time as holds."""
    for gpu in draft.gpus:
        for gpu_let in gpu:
            for part in (1.0, 0.75, 0.5, 0.25):
                if rate > SLACK and packing.join(draft, gpu, gpu_let, model, rate * part):
                    rate -= rate * part
                    break
    return rate


def _put(draft: Draft, gpu: DraftGpu, gpu_let: DraftGpuLet, lost: dict[str, float]) -> bool:
    """Adds ``let``; rates that the two gpu-lets of the device no longer serve, now being neighbours, go to ``lost``."""
    added = [other.copy() for other in gpu] + [gpu_let.copy()]
    cut: dict[str, float] = {}
    for place, other in enumerate(added):
        neighbours = added[:place] + added[place + 1 :]
        if len(other.rates) > 1:
            _lighten(draft, other, neighbours, cut)
        if len(other.rates) != 1:
            continue
        ((model, rate),) = other.rates.items()
        slowdown = draft.slowdown(model, neighbours)
        can = draft.timing.capacity(model, other.ticks, slowdown).rate
        if can < rate:
            cut[model] = cut.get(model, 0.0) + rate - can
            other.rates[model] = can
    if any(rate <= SLACK for other in added for rate in other.rates.values()) or not draft.holds(added):
        return False
    gpu[:] = added
    for model, rate in cut.items():
        lost[model] = lost.get(model, 0.0) + rate
    return True


def _lighten(draft: Draft, gpu_let: DraftGpuLet, neighbours: DraftGpu, cut: dict[str, float]) -> None:
    """Models that take turns, slowed down by new neighbours: the last that came leaves, until the others are served."""
    while len(gpu_let.rates) > 1 and draft.serve(gpu_let, neighbours) is None:
        model, rate = gpu_let.rates.popitem()
        cut[model] = cut.get(model, 0.0) + rate


def free(gpu: DraftGpu) -> int:
    """Tenths of the free gpu-let of a device; 0 if both are taken. A split fixes both parts."""
    return SIZES[-1] if not gpu else SIZES[-1] - gpu[0].ticks if len(gpu) == 1 else 0
