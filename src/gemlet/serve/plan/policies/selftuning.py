"""`selftuning`: shares and batches by feedback, as GSLICE (SoCC 2020) does it, against the profile instead of a GPU.

Round by round a model's share moves by the larger of its relative misses of latency and throughput, and its batch by
what is left of the SLO. The shares found are what each model demands; if they sum to more than there is, the smallest
demands are met first (max-min fairness), and the models that then miss their rates make the plan infeasible.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from gemlet.config.quantities import format_share
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand

ROUNDS = 40


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """Feedback for each model alone, then fairness, then first fit, the largest first."""
    wants: list[tuple[int, str, float]] = []
    for demand in demands:
        full = draft.timing.capacity(demand.model, draft.grid).rate
        copies = max(1, ceil(demand.rate / full - SLACK))
        rate = demand.rate / copies
        wants += [(tune(draft, demand.model, rate), demand.model, rate)] * copies
    granted = max_min([ticks for ticks, _, _ in wants], gpus * draft.grid)
    why = []
    for (ticks, model, rate), got in sorted(zip(wants, granted, strict=True), reverse=True):
        if draft.timing.capacity(model, got).rate < rate - SLACK:
            why.append(
                f"{model}: {rate:.4g} requests/s ask for {format_share(ticks / draft.grid)} of a device;"
                f" fair is {format_share(got / draft.grid)}"
            )
        else:
            first_fit(draft, DraftGpuLet(got, {model: rate}))
    return why


def tune(draft: Draft, model: str, rate: float) -> int:
    """The smallest size on the way of the feedback that met rate and SLO; the whole device if none did."""
    timing, slo = draft.timing, draft.timing.slos[model]
    ticks, batch = max(1, draft.grid // 2), 1
    good = draft.grid
    for _ in range(ROUNDS):
        row = timing.row(model, ticks)
        batch = min(max(1, batch), len(row) - 1)
        latency = 2 * row[batch]
        throughput = 1000 * batch / row[batch]
        late, short = (latency - slo) / slo, (rate - throughput) / rate
        if timing.capacity(model, ticks).rate >= rate:
            good = min(good, ticks)
        step = max(abs(late), abs(short))
        change = max(1, round(ticks * min(0.5, step) / 2))
        ticks = min(draft.grid, max(1, ticks + (change if late > 0 or short > 0 else -change)))
        batch += round(batch * (slo - latency) / slo) or (1 if latency < slo else -1)
    return good


def max_min(wants: Sequence[int], total: int) -> list[int]:
    """Ticks for each: no model gets more than it asks for, and no smaller share could grow."""
    granted = [0] * len(wants)
    left = total
    for done, place in enumerate(sorted(range(len(wants)), key=lambda i: wants[i])):
        granted[place] = min(wants[place], left // (len(wants) - done))
        left -= granted[place]
    return granted


def first_fit(draft: Draft, gpu_let: DraftGpuLet) -> None:
    """The first device with the room and the memory, else a new one."""
    for gpu in draft.gpus:
        if draft.room(gpu) >= gpu_let.ticks and draft.holds([*gpu, gpu_let]):
            gpu.append(gpu_let)
            return
    draft.gpus.append([gpu_let])
