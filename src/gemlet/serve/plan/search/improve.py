"""Local search over whole devices: dissolve one into the others, or tear up a few and pack them anew.

Bounded by work counted and not by a clock, and random only by a fixed seed, so a plan is the same wherever it is made.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from gemlet.serve.plan.search import packing
from gemlet.serve.plan.search.draft import SLACK, DraftGpu

if TYPE_CHECKING:
    from gemlet.serve.plan.search.draft import Draft


def improve(draft: Draft, lower_bound: int, effort: int) -> None:
    """Fewer devices where it finds a way, never fewer than ``lower_bound``."""
    chance = random.Random(1)
    until = draft.work + effort
    while len(draft.gpus) > lower_bound:
        if dissolve(draft):
            continue
        if draft.work >= until:
            return
        tear_up(draft, chance)


def dissolve(draft: Draft) -> bool:
    """Moves everything from the emptiest device to the others; all or nothing."""
    order = sorted(range(len(draft.gpus)), key=lambda place: (packing.used(draft.gpus[place]), place))
    victim = draft.gpus[order[0]]
    rest = [copy(draft.gpus[place]) for place in sorted(order[1:])]
    for model, rate in rates(victim):
        if packing.absorb(draft, rest, model, rate) > 0:
            return False
    draft.gpus = rest
    return True


def tear_up(draft: Draft, chance: random.Random) -> None:
    """Packs the emptiest device and one or two others anew, in another order; kept if room gathers in one place."""
    count = min(len(draft.gpus), chance.choice((2, 3, 3, 4)))
    emptiest = min(range(len(draft.gpus)), key=lambda place: (packing.used(draft.gpus[place]), place))
    others = [place for place in range(len(draft.gpus)) if place != emptiest]
    chosen = {emptiest, *chance.sample(others, count - 1)}
    torn = [draft.gpus[place] for place in sorted(chosen)]
    rest = [copy(gpu) for place, gpu in enumerate(draft.gpus) if place not in chosen]
    demand: dict[str, float] = {}
    for gpu in torn:
        for model, rate in rates(gpu):
            demand[model] = demand.get(model, 0.0) + rate
    fresh = build(draft, rest, demand, count - chance.randint(0, 1), chance)
    if fresh is None:
        return
    new = [gpu for gpu in rest + fresh if gpu]
    if gathered(new) >= gathered(draft.gpus) or len(new) < len(draft.gpus):
        draft.gpus = new


def build(
    draft: Draft, rest: list[DraftGpu], demand: dict[str, float], limit: int, chance: random.Random
) -> list[DraftGpu] | None:
    """At most ``limit`` new devices that, with what ``rest`` can take, serve the demand; None if they cannot."""
    models = sorted(demand)
    chance.shuffle(models)
    fresh: list[DraftGpu] = []
    for model in models:
        left = packing.absorb(draft, rest, model, demand[model]) if chance.random() < 0.5 else demand[model]
        size = good_size(draft, model, chance)
        share = chance.random() < 0.7
        while left > SLACK:
            part = min(left, draft.timing.capacity(model, size, 1.0).rate)
            if packing.place(draft, fresh, model, part, share=share):
                left -= part
            elif len(fresh) < limit:
                fresh.append([])
            else:
                left = packing.absorb(draft, rest + fresh, model, left)
                if left > SLACK:
                    return None
    return fresh


def good_size(draft: Draft, model: str, chance: random.Random) -> int:
    """One of the sizes that serve within a tenth of the most requests for each tick."""
    timing = draft.timing
    best = timing.target(model)
    aim = 0.9 * timing.capacity(model, best).rate / best
    return chance.choice(
        [ticks for ticks in range(1, draft.grid + 1) if timing.capacity(model, ticks).rate >= aim * ticks]
    )


def gathered(gpus: list[DraftGpu]) -> int:
    """Larger when few devices are nearly full and one nearly empty."""
    return sum(packing.used(gpu) ** 2 for gpu in gpus) - 1_000_000 * len(gpus)


def rates(gpu: DraftGpu) -> list[tuple[str, float]]:
    """Largest gpu-lets first: what is hard to place goes first."""
    ordered = sorted(gpu, key=lambda gpu_let: (-gpu_let.ticks, list(gpu_let.rates)))
    return [(model, rate) for gpu_let in ordered for model, rate in gpu_let.rates.items()]


def copy(gpu: DraftGpu) -> DraftGpu:
    return [gpu_let.copy() for gpu_let in gpu]
