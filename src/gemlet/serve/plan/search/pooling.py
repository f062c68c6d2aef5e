"""Turns the gpu-lets of a device into a pool where that sustains more: after a plan was packed for the mean rates.

Packing gives each model the gpu-let that serves its mean rate with the fewest SMs. Requests do not come evenly, and no
other gpu-let helps a small gpu-let of one model with a burst. So each device is judged once more by what it sustains
with bursts (pool.py): as it was packed, as pools of two to five gpu-lets for all its models, and as a pool beside one
small gpu-let for those models that take the least time, which would cut up the batches of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet
from gemlet.serve.plan.search.pool import Pool, mean_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

MOST = 5  # gpu-lets of a pool: simulated, more sustain less than is reckoned, since each waits for its own long batches
SMALL = (1, 2)  # ticks of the gpu-let beside a pool
CALM = 1.5  # times the planned rates: what sustains that with bursts and all stays as it is
GAIN = 1.05  # what a pool must sustain more
BETTER = 1.01  # than the best so far, to be examined further
TOO_LITTLE = 0.5  # times the planned rates: no pool then
NEAR = 0.97  # of the best: what needs the fewest graphs is taken


def pool(draft: Draft) -> None:
    """Replaces the gpu-lets of each device that gains by it; the models of a device stay."""
    draft.gpus = [_pooled(draft, gpu) or gpu for gpu in draft.gpus]


def _pooled(draft: Draft, gpu: DraftGpu) -> DraftGpu | None:
    rates = demanded(draft, gpu)
    if not allowed(draft, rates):
        return None
    now = draft.sustains([Pool((gpu_let.ticks,), gpu_let.rates) for gpu_let in gpu])
    return _best(draft, rates, GAIN * now) if now < CALM else None


def demanded(draft: Draft, gpu: DraftGpu) -> dict[str, float]:
    """Requests/s of each model that the device serves, in the order of the demands."""
    there = {model: sum(gpu_let.rates.get(model, 0.0) for gpu_let in gpu) for model in draft.timing.slos}
    return {model: rate for model, rate in there.items() if rate > 0}


def allowed(draft: Draft, models: Collection[str]) -> bool:
    """On a device with these models. With MPS every gpu-let would have its own copy of the weights."""
    return draft.options.executor == "green" and 1 < len(models) <= draft.options.pool_models


def most_sustained(draft: Draft, rates: Mapping[str, float], least: float = 0.0) -> float:
    """How many times these rates the best pools sustain; 0.0 if it is not ``least``."""
    most = 0.0
    for pools in candidates(draft, rates):
        most = max(most, draft.sustains(pools, max(least, BETTER * most)))
    return most


def _best(draft: Draft, rates: Mapping[str, float], least: float) -> DraftGpu | None:
    """The pools to have for these rates, if some hold for them and sustain bursts at ``least`` times them."""
    least = max(least, TOO_LITTLE)
    enough = max(least, NEAR * most_sustained(draft, rates, least))
    for pools in sorted(candidates(draft, rates), key=_places):
        if draft.sustains(pools, enough):
            made = [gpu_let for each in pools for gpu_let in gpu_lets(draft, each)]
            if draft.holds(made):
                return made
    return None


def candidates(draft: Draft, rates: Mapping[str, float]) -> Iterator[list[Pool]]:
    """Pools of the whole device, and those beside a small gpu-let."""
    yield from ([Pool(sizes, rates)] for sizes in splits(draft.grid))
    light = sorted(rates, key=lambda model: (rates[model] * mean_time(draft.timing, (draft.grid,), model, 1), model))
    for ticks in SMALL:
        for count in range(1, len(light)):
            few = {model: rates[model] for model in light[:count]}
            rest = {model: rates[model] for model in light[count:]}
            if draft.grid > ticks:
                yield from ([Pool(sizes, rest), Pool((ticks,), few)] for sizes in splits(draft.grid - ticks))


def splits(ticks: int) -> Iterator[tuple[int, ...]]:
    """So many ticks as gpu-lets of equal size, or nearly: from two to MOST of them."""
    for count in range(2, min(MOST, ticks) + 1):
        yield tuple(ticks // count + (place < ticks % count) for place in range(count))


def gpu_lets(draft: Draft, pool: Pool) -> list[DraftGpuLet]:
    """The gpu-lets of a pool; each has the part of a rate that goes with how fast it is."""
    made = [DraftGpuLet(ticks, {}, pool=True) for ticks in pool.ticks]
    for model, rate in pool.rates.items():
        batch = draft.timing.capacity(model, min(pool.ticks)).batch or 1
        speeds = [1 / draft.timing.row(model, gpu_let.ticks)[batch] for gpu_let in made]
        for gpu_let, speed in zip(made, speeds, strict=True):
            gpu_let.rates[model] = max(SLACK, rate * speed / sum(speeds))
    return made


def _places(pools: Sequence[Pool]) -> int:
    """Models times gpu-lets, each of which needs CUDA graphs of its own."""
    return sum(len(pool.ticks) * len(pool.rates) for pool in pools)
