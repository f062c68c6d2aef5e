"""`exhaustive` and `ideal`: every partition of every device and every placement, for small cases: what to compare with.

`ideal` knows glet's partitions only (100, 80/20, 60/40 and 50/50 %), `exhaustive` all partitions of the grid. A
placement gives each model some gpu-lets for itself and at most a place on one that it shares. The first that holds is
taken, from one device upwards, so the number of devices is the least there is within these rules.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING

from gemlet.errors import InvalidValue
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gemlet.serve.plan.model import Demand

TWO_WAY = ((10,), (8, 2), (6, 4), (5, 5))
MAX_GPUS, MAX_MODELS, MAX_GRID = 4, 8, 10
MAX_WORK = 5_000_000  # placements and judgements: half a minute
MAX_COMBINATIONS = 1000  # of partitions of all devices


def pack_ideal(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    return _search(draft, demands, gpus, TWO_WAY)


def pack_exhaustive(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    if draft.grid > MAX_GRID:
        raise InvalidValue(
            f"exhaustive looks at grids up to {MAX_GRID}, not {draft.grid}", hint=f"choose --grid {MAX_GRID} or less"
        )
    return _search(draft, demands, gpus, tuple(partitions(draft.grid)))


def partitions(total: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as a sum, largest part first."""
    if total == 0:
        yield ()
    for first in range(min(total, largest or total), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


def _search(draft: Draft, demands: Sequence[Demand], gpus: int, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    if gpus > MAX_GPUS or len(demands) > MAX_MODELS or comb(len(shapes) + gpus - 1, gpus) > MAX_COMBINATIONS:
        raise InvalidValue(
            f"{len(demands)} models on {gpus} GPUs, each split in {len(shapes)} ways, are too many to try everything",
            hint=f"at most {MAX_MODELS} models and {MAX_GPUS} GPUs on a coarse grid; nway has no such limit",
        )
    cost = {d.model: draft.timing.fluid_ticks(d.model, d.rate) for d in demands}
    order = sorted(demands, key=lambda d: (-cost[d.model], d.model))
    for count in range(1, gpus + 1):
        if sum(cost.values()) > count * draft.grid + SLACK:
            continue
        for chosen in combinations_with_replacement(shapes, count):
            draft.gpus = [[DraftGpuLet(ticks, {}) for ticks in shape] for shape in chosen]
            if _assign(draft, order, 0, order[0].rate if order else 0.0, start=0):
                return []
    draft.gpus = []
    return [f"no partition and placement holds on {gpus} GPU{'s' * (gpus > 1)}"]


def _assign(draft: Draft, order: Sequence[Demand], at: int, left: float, start: int) -> bool:
    """Places what is ``left`` of demand ``at`` on gpu-lets from number ``start``, then the demands after it."""
    draft.work += 1
    if draft.work > MAX_WORK:
        raise InvalidValue(
            f"no end after {MAX_WORK} placements", hint="take fewer models or GPUs, --grid 5, or the policy nway"
        )
    if at == len(order):
        return _holds(draft, order)
    if left <= SLACK:
        following = order[at + 1].rate if at + 1 < len(order) else 0.0
        return _assign(draft, order, at + 1, following, start=0)
    model = order[at].model
    places = [(gpu, gpu_let) for gpu in draft.gpus for gpu_let in gpu]
    tried = set()
    for number, (gpu, gpu_let) in enumerate(places):
        alike = (gpu_let.ticks, tuple(sorted(gpu_let.rates.items())), _shape(gpu))
        if alike in tried or model in gpu_let.rates:
            continue
        tried.add(alike)
        if gpu_let.rates:
            gpu_let.rates[model] = left
            fits = len(gpu_let.rates) <= draft.options.max_models and draft.serve(gpu_let, ()) is not None
            if fits and _assign(draft, order, at, 0.0, 0):
                return True
            gpu_let.rates.pop(model, None)
        elif number >= start:
            part = min(left, draft.timing.capacity(model, gpu_let.ticks).rate)
            if part > SLACK:
                gpu_let.rates[model] = part
                if _assign(draft, order, at, left - part, number + 1):
                    return True
                gpu_let.rates.pop(model, None)
    return False


def _shape(gpu: DraftGpu) -> tuple[tuple[int, tuple[str, ...]], ...]:
    return tuple(sorted((gpu_let.ticks, tuple(gpu_let.rates)) for gpu_let in gpu))


def _holds(draft: Draft, order: Sequence[Demand]) -> bool:
    """A full placement, neighbours now known: rates are shared out anew by what each gpu-let can really take."""
    used = [[gpu_let for gpu_let in gpu if gpu_let.rates] for gpu in draft.gpus]
    if all(draft.holds(gpu) for gpu in used):
        return True
    if draft.alone:
        return False
    saved = [dict(gpu_let.rates) for gpu in used for gpu_let in gpu]
    for demand in order:
        _share_out(draft, used, demand.model, demand.rate)
    if all(draft.holds(gpu) for gpu in used):
        return True
    for gpu_let, rates in zip((gpu_let for gpu in used for gpu_let in gpu), saved, strict=True):
        gpu_let.rates = rates
    return False


def _share_out(draft: Draft, used: Sequence[DraftGpu], model: str, rate: float) -> None:
    own = [(gpu, gpu_let) for gpu in used for gpu_let in gpu if list(gpu_let.rates) == [model]]
    rate -= sum(
        gpu_let.rates[model] for gpu in used for gpu_let in gpu if model in gpu_let.rates and len(gpu_let.rates) > 1
    )
    capacities = [
        draft.timing.capacity(model, gpu_let.ticks, draft.slowdown(model, [o for o in gpu if o is not gpu_let])).rate
        for gpu, gpu_let in own
    ]
    for (_, gpu_let), capacity in zip(own, capacities, strict=True):
        gpu_let.rates[model] = rate * capacity / sum(capacities) if sum(capacities) else rate
