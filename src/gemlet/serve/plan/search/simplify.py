"""Room that a plan leaves over, spent on fewer and calmer gpu-lets; the number of devices stays as it is.

Packing tight is right while it saves a device. Where it does not, a model in one place is better than in several, and a
gpu-let of its own better than turns with others: requests wait for nobody else.
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
    for number, let in enumerate(gpu):
        twin = next(
            (other for other in merged if len(other.rates) == 1 and other.rates.keys() == let.rates.keys()), None
        )
        if twin is not None:
            ((model, rate),) = let.rates.items()
            both = DraftGpuLet(twin.ticks + let.ticks, {model: rate + twin.rates[model]})
            rest = [other for other in merged if other is not twin]
            if draft.holds([*rest, both, *gpu[number + 1 :]]):
                merged = [*rest, both]
                continue
        merged.append(let)
    return merged


def _gather(draft: Draft, model: str) -> None:
    """All of a model on one gpu-let of its own, if one device can take that."""
    places = [let for gpu in draft.gpus for let in gpu if model in let.rates]
    if len(places) < 2:
        return
    trial = [[let.copy() for let in gpu] for gpu in draft.gpus]
    for let in (let for gpu in trial for let in gpu):
        let.rates.pop(model, None)
    trial = [[let for let in gpu if let.rates] for gpu in trial]
    if packing.place(draft, trial, model, sum(let.rates[model] for let in places), share=False):
        draft.gpus = [gpu for gpu in trial if gpu]


def _end_turns(draft: Draft, gpu: DraftGpu) -> None:
    """Models of shared gpu-lets get their own on the same device, the smallest rate first, until there is no room."""
    while any(
        _end_turn(draft, gpu, let, model)
        for let in gpu
        if len(let.rates) > 1
        for model in sorted(let.rates, key=let.rates.__getitem__)
    ):
        pass


def _end_turn(draft: Draft, gpu: DraftGpu, let: DraftGpuLet, model: str) -> bool:
    """Takes ``model`` off ``let``; changes ``gpu`` only if it has room for a gpu-let more."""
    rest = DraftGpuLet(let.ticks, {name: rate for name, rate in let.rates.items() if name != model})
    others = [rest if other is let else other for other in gpu]
    _shrink(draft, rest, others)
    added = packing.with_new_let(draft, others, model, let.rates[model])
    if added is None or packing.used(added) > draft.grid:
        return False
    gpu[:] = added
    return True


def _shrink(draft: Draft, let: DraftGpuLet, gpu: DraftGpu) -> None:
    """To the fewest ticks that still serve its rates."""
    others = [other for other in gpu if other is not let]
    while let.ticks > 1:
        let.ticks -= 1
        if draft.serve(let, others) is None:
            let.ticks += 1
            return
