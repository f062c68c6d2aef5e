"""`exclusive`: a device serves one model, as with one model server a GPU."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """As many whole devices as each rate needs, loaded evenly."""
    for demand in demands:
        count = ceil(demand.rate / draft.timing.capacity(demand.model, draft.grid).rate - SLACK)
        for _ in range(max(1, count)):
            draft.gpus.append([DraftGpuLet(draft.grid, {demand.model: demand.rate / max(1, count)})])
    return []
