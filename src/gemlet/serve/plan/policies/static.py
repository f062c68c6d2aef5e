"""`static`: gpu-lets whose sizes never change, as with MPS percentages set by hand.

With a previous plan its gpu-lets and the models on them are fixed, and only the rates are shared out anew. Without one
each device has two halves, and models are put on halves until the rates are met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.config.quantities import format_share
from gemlet.serve.plan.search import packing
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Demand


def pack(draft: Draft, demands: Sequence[Demand], gpus: int) -> list[str]:
    """Rates on fixed gpu-lets; the failure names each model and what of its rate has no place."""
    if draft.gpus:
        return _on_given(draft, demands)
    if draft.grid == 1:
        return ["the grid has one tick: a device cannot be halved"]
    for demand in sorted(demands, key=lambda d: (-d.rate * d.slo_ms, d.model)):
        failure = _halves(draft, demand, gpus)
        if failure:
            return failure
    return []


def _halves(draft: Draft, demand: Demand, gpus: int) -> list[str]:
    half = draft.grid // 2
    rate = demand.rate
    while rate > SLACK:
        part = min(rate, draft.timing.capacity(demand.model, half).rate)
        if part < rate or not _take_turns(draft, demand.model, rate):
            placed = _half(draft, demand.model, part, gpus)
            if placed <= SLACK:
                return [f"{demand.model}: {rate:.4g} requests/s find no place on the halves of {gpus} GPUs"]
            rate -= placed
        else:
            rate = 0.0
    return []


def _take_turns(draft: Draft, model: str, rate: float) -> bool:
    return any(packing.join(draft, gpu, gpu_let, model, rate) for gpu in draft.gpus for gpu_let in gpu)


def _half(draft: Draft, model: str, rate: float, gpus: int) -> float:
    """How much of the rate an empty half takes: beside the neighbours that are there, else on a new device."""
    half = draft.grid // 2
    for gpu in [gpu for gpu in draft.gpus if len(gpu) == 1]:
        gpu_let = DraftGpuLet(
            half, {model: min(rate, draft.timing.capacity(model, half, draft.slowdown(model, gpu)).rate)}
        )
        if gpu_let.rates[model] > SLACK and draft.holds([*gpu, gpu_let]):
            gpu.append(gpu_let)
            return gpu_let.rates[model]
    # Room for the slow-down that a neighbour will bring: nine tenths of what it could do alone.
    gpu_let = DraftGpuLet(half, {model: min(rate, 0.9 * draft.timing.capacity(model, half).rate)})
    if len(draft.gpus) >= gpus or gpu_let.rates[model] <= SLACK or not draft.holds([gpu_let]):
        return 0.0
    draft.gpus.append([gpu_let])
    return gpu_let.rates[model]


def _on_given(draft: Draft, demands: Sequence[Demand]) -> list[str]:
    rates = {demand.model: demand.rate for demand in demands}
    for gpu in draft.gpus:
        for gpu_let in gpu:
            gpu_let.rates = {model: rate for model, rate in gpu_let.rates.items() if model in rates}
        gpu[:] = [gpu_let for gpu_let in gpu if gpu_let.rates]
    why = [f"{model}: is on none of the fixed gpu-lets" for model in rates if not _places(draft, model)]
    for model, rate in rates.items():
        places = _places(draft, model)
        # What its turn can be is known by the rates that the fixed plan gave; a share of the whole follows them.
        weights = [
            draft.timing.capacity(
                model, gpu_let.ticks, draft.slowdown(model, [o for o in gpu if o is not gpu_let])
            ).rate
            / len(gpu_let.rates)
            for gpu, gpu_let in places
        ]
        for (_, gpu_let), weight in zip(places, weights, strict=True):
            gpu_let.rates[model] = rate * weight / sum(weights) if sum(weights) else rate
    for number, gpu in enumerate(draft.gpus):
        total = sum(gpu_let.ticks for gpu_let in gpu) / draft.grid
        if total > 1.0 + SLACK:
            why.append(f"GPU {number}: the fixed shares sum to {format_share(total)}, more than the device")
        if not draft.holds(gpu):
            names = ", ".join(sorted({model for gpu_let in gpu for model in gpu_let.rates}))
            why.append(f"GPU {number} cannot serve {names} at these rates within the SLOs on its fixed gpu-lets")
    return why


def _places(draft: Draft, model: str) -> list[tuple[DraftGpu, DraftGpuLet]]:
    return [(gpu, gpu_let) for gpu in draft.gpus for gpu_let in gpu if model in gpu_let.rates]
