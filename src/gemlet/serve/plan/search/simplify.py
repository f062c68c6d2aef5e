"""Spends the room that a plan leaves on fewer and calmer gpu-lets; the number of devices stays as it is.

Tight packing pays only if it saves a device. Otherwise a model in one place is better than in several, and a gpu-let of
its own better than turns with others, because its requests wait for no other model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.plan.search import packing
from gemlet.serve.plan.search.draft import DraftGpu, DraftGpuLet

if TYPE_CHECKING:
    from gemlet.serve.plan.search.draft import Draft


def simplify(draft: Draft) -> None:
    """Joins twins, gathers models that are in several places, then ends turns, as far as there is room."""
    draft.gpus = [_merged(draft, gpu) for gpu in draft.gpus]
    for model in draft.timing.slos:
        _gather(draft, model)
    for gpu in draft.gpus:
        _end_turns(draft, gpu)


def _merged(draft: Draft, gpu: DraftGpu) -> DraftGpu:
    """One gpu-let in place of two with the same model on a device, wherever that serves as much: larger is faster."""
    merged: DraftGpu = []
    for number, gpu_let in enumerate(gpu):
        twin = next(
            (other for other in merged if len(other.rates) == 1 and other.rates.keys() == gpu_let.rates.keys()), None
        )
        if twin is not None:
            ((model, rate),) = gpu_let.rates.items()
            both = DraftGpuLet(twin.ticks + gpu_let.ticks, {model: rate + twin.rates[model]})
            rest = [other for other in merged if other is not twin]
            if draft.holds([*rest, both, *gpu[number + 1 :]]):
                merged = [*rest, both]
                continue
        merged.append(gpu_let)
    return merged


def _gather(draft: Draft, model: str) -> None:
    """All of a model on one gpu-let of its own, if one device can take that."""
    places = [gpu_let for gpu in draft.gpus for gpu_let in gpu if model in gpu_let.rates]
    if len(places) < 2:
        return
    trial = [[gpu_let.copy() for gpu_let in gpu] for gpu in draft.gpus]
    for gpu_let in (gpu_let for gpu in trial for gpu_let in gpu):
        gpu_let.rates.pop(model, None)
    trial = [[gpu_let for gpu_let in gpu if gpu_let.rates] for gpu in trial]
    if packing.place(draft, trial, model, sum(gpu_let.rates[model] for gpu_let in places), share=False):
        draft.gpus = [gpu for gpu in trial if gpu]


def _end_turns(draft: Draft, gpu: DraftGpu) -> None:
    """Models of shared gpu-lets get their own on the same device, the smallest rate first, until there is no room."""
    while any(
        _end_turn(draft, gpu, gpu_let, model)
        for gpu_let in gpu
        if len(gpu_let.rates) > 1
        for model in sorted(gpu_let.rates, key=gpu_let.rates.__getitem__)
    ):
        pass


def _end_turn(draft: Draft, gpu: DraftGpu, gpu_let: DraftGpuLet, model: str) -> bool:
    """Takes ``model`` off ``let``; changes ``gpu`` only if it has room for a gpu-let more."""
    rest = DraftGpuLet(gpu_let.ticks, {name: rate for name, rate in gpu_let.rates.items() if name != model})
    others = [rest if other is gpu_let else other for other in gpu]
    _shrink(draft, rest, others)
    added = packing.with_new_gpu_let(draft, others, model, gpu_let.rates[model])
    if added is None or packing.used(added) > draft.grid:
        return False
    gpu[:] = added
    return True


def _shrink(draft: Draft, gpu_let: DraftGpuLet, gpu: DraftGpu) -> None:
    """To the fewest ticks that still serve its rates."""
    others = [other for other in gpu if other is not gpu_let]
    while gpu_let.ticks > 1:
        gpu_let.ticks -= 1
        if draft.serve(gpu_let, others) is None:
            gpu_let.ticks += 1
            return
