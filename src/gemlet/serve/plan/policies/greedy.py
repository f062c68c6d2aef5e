"""`greedy`: each model gets the smallest share that serves it, first fit; no turns, no interference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """Whole devices while the rate needs them, then the smallest share for the rest."""
    for demand in sorted(demands, key=lambda d: (d.rate * d.slo_ms, d.model)):
        full = draft.timing.capacity(demand.model, draft.grid).rate
        rate = demand.rate
        while rate > SLACK:
            part = min(rate, full)
            ticks = draft.timing.smallest(demand.model, part, draft.grid)
            first_fit(draft, DraftGpuLet(ticks or draft.grid, {demand.model: part}))
            rate -= part
    return []


def first_fit(draft: Draft, gpu_let: DraftGpuLet) -> None:
    """The first device with the room and the memory, else a new one."""
    for gpu in draft.gpus:
        if draft.room(gpu) >= gpu_let.ticks and draft.holds([*gpu, gpu_let]):
            gpu.append(gpu_let)
            return
    draft.gpus.append([gpu_let])
