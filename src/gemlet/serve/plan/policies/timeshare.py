"""`timeshare`: whole devices, several models by turns: squishy bin packing (Nexus, SOSP 2019).

A model first fills whole devices; what is left of each, the largest first, joins the device that is fullest with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """Fills as many devices as it takes."""
    rests = []
    for demand in demands:
        full = draft.timing.capacity(demand.model, draft.grid).rate
        rate = demand.rate
        while rate > full + SLACK:
            draft.gpus.append([DraftGpuLet(draft.grid, {demand.model: full})])
            rate -= full
        if rate > SLACK:
            rests.append((rate / full, demand.model, rate))
    shared: list[DraftGpu] = []
    for _, model, rate in sorted(rests, key=lambda rest: (-rest[0], rest[1])):
        best: tuple[float, DraftGpuLet] | None = None
        for gpu in shared:
            gpu_let = gpu[0]
            gpu_let.rates[model] = rate
            how = draft.serve(gpu_let, ())
            if how is not None and draft.holds(gpu) and (best is None or how.occupancy > best[0]):
                best = (how.occupancy, gpu_let)
            del gpu_let.rates[model]
        if best is None:
            shared.append([DraftGpuLet(draft.grid, {model: rate})])
        else:
            best[1].rates[model] = rate
    draft.gpus += shared
    return []
