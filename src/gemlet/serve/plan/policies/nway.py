"""`nway` and `nway+type`: any number of gpu-lets on a device, sizes by best throughput for each SM, and local search.

1. A demand is cut into pieces: gpu-lets of the size that serves most requests for each tick, and one for the rest;
   other sizes are tried too where neighbours cost something, and whole devices by turns.
2. Pieces go on devices largest first, best fit; small rests take turns on one gpu-let where the cycle holds.
3. Local search (improve.py) empties devices, with a bounded amount of work, always the same for the same input.
4. What room is left is spent on fewer and calmer gpu-lets (simplify.py).
5. Where gpu-lets would not sustain bursts, those of a device become a pool (pooling.py).

The workload types are the profiles' vectors. `nway` is blind to them: every neighbour may be the worst of the demanded
models. `nway+type` computes the slow-down from the models that really are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from statistics import mean
from typing import TYPE_CHECKING

from gemlet.serve.plan.policies import timeshare
from gemlet.serve.plan.search import packing, pooling
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet
from gemlet.serve.plan.search.improve import gathered, improve
from gemlet.serve.plan.search.simplify import simplify

if TYPE_CHECKING:
    from gemlet.serve.plan.model import Demand

Allowance = Callable[[Sequence[float]], float]
IMPROVED = 3  # of the first packings


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """The policy; it does not look at the number of devices, so more of them never make a plan worse."""
    fill(draft, demands)
    return []


def fill(draft: Draft, demands: Sequence[Demand]) -> None:
    """Fills ``draft`` with as few devices as it finds; every demand must be feasible alone on a whole device."""
    fluid = sum(draft.timing.fluid_ticks(demand.model, demand.rate) for demand in demands)
    lower_bound = max(1, ceil(fluid / draft.grid - SLACK))
    # Where neighbours cost something, few large gpu-lets may serve more than the size that is cheapest alone.
    sizes = [None] if draft.alone else [None, draft.grid, max(1, draft.grid - 1), draft.grid // 2 or 1]
    allowances = (mean,) if draft.alone else (mean, max, min)
    found: list[tuple[int, int, int, list[DraftGpu]]] = []
    for size in sizes:
        for allowance in allowances:
            for even in (False,) if draft.alone else (False, True):
                draft.gpus = []
                start(draft, demands, size, allowance, even=even)
                found.append((len(draft.gpus), -gathered(draft.gpus), len(found), draft.gpus))
    found.sort(key=lambda entry: entry[:3])
    best = found[0][3]
    for _, _, _, gpus in found[:IMPROVED]:
        draft.gpus = gpus
        improve(draft, lower_bound, draft.options.effort // min(len(found), IMPROVED))
        if len(draft.gpus) < len(best):
            best = draft.gpus
        if len(best) <= lower_bound:
            break
    if not draft.alone and len(best) > lower_bound:  # where neighbours cost much, fewer whole devices may do
        draft.gpus = []
        timeshare.pack(draft, demands, 0)
        improve(draft, lower_bound, draft.options.effort // IMPROVED)
        if len(draft.gpus) < len(best):
            best = draft.gpus
    draft.gpus = best
    simplify(draft)
    packing.spread(draft, draft.gpus)  # so that none runs hot
    pooling.pool(draft)


def start(
    draft: Draft, demands: Sequence[Demand], size: int | None, allowance: Allowance, *, even: bool = False
) -> None:
    """A first packing: pieces of this size (None: each model's cheapest), largest first, best fit.

    Full pieces and a rest, or ``even``: pieces of the same rate, of which none is too full for a neighbour.
    """
    pieces: list[tuple[int, str, float]] = []
    for demand in demands:
        cuts = cut(draft, demand.model, demand.rate, size, allowance)
        if even and len(cuts) > 1 and cuts[-1][0] == cuts[0][0]:
            cuts = [(cuts[0][0], demand.model, demand.rate / len(cuts))] * len(cuts)
        pieces += cuts
    pieces.sort(key=lambda piece: (-piece[0], piece[1], -piece[2]))
    for _, model, rate in pieces:
        put(draft, model, rate)


def cut(draft: Draft, model: str, rate: float, size: int | None, allowance: Allowance) -> list[tuple[int, str, float]]:
    """Pieces (ticks, model, rate) of a demand; sizes leave room for the slow-down to be expected."""
    timing = draft.timing
    ticks = size or timing.target(model)
    slowdown = expected_slowdown(draft, model, ticks, allowance)
    full = timing.capacity(model, ticks, slowdown).rate
    if full <= 0:  # too slow beside neighbours at this size: the whole device, alone
        ticks, slowdown = draft.grid, 1.0
        full = timing.capacity(model, ticks).rate
    pieces = []
    while rate > full + SLACK:
        pieces.append((ticks, model, full))
        rate -= full
    if rate > SLACK:
        pieces.append((timing.smallest(model, rate, ticks, slowdown) or ticks, model, rate))
    return pieces


def expected_slowdown(draft: Draft, model: str, ticks: int, allowance: Allowance) -> float:
    """The slow-down if the rest of the device is full of another demanded model, over all of them."""
    rest = draft.grid - ticks
    if draft.alone or not rest:
        return 1.0
    return allowance([draft.slowdown(model, [DraftGpuLet(rest, {other: 1.0})]) for other in draft.timing.slos])


def put(draft: Draft, model: str, rate: float) -> None:
    """One piece where it fits best, on a new device if nowhere."""
    if packing.place(draft, draft.gpus, model, rate):
        return
    added = packing.with_new_gpu_let(draft, [], model, rate)
    if added is None:  # cut() left room for neighbours only where that is possible
        whole = draft.timing.capacity(model, draft.grid).rate
        put(draft, model, min(whole, rate / 2))
        put(draft, model, rate - min(whole, rate / 2))
        return
    draft.gpus.append(added)
