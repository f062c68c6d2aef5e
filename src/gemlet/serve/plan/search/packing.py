"""Placing rates on devices of N gpu-lets: the moves that `nway` and its local search are made of.

Each move either leaves every device of the draft holding, or changes nothing and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.plan.search import interference
from gemlet.serve.plan.search.draft import SLACK, Draft, DraftGpu, DraftGpuLet

if TYPE_CHECKING:
    from collections.abc import Iterable


ROOMIEST = 2  # devices on which the last and dearest move is tried


def with_new_gpu_let(draft: Draft, gpu: DraftGpu, model: str, rate: float) -> DraftGpu | None:
    """The device with the smallest new gpu-let that serves the rate; neighbours it slows down grow as needed."""
    room = draft.room(gpu)
    if room < 1:
        return None
    ticks = draft.timing.smallest(model, rate, room, draft.slowdown(model, gpu))
    if ticks is None:
        return None
    gpu_let = DraftGpuLet(ticks, {model: rate})
    added = [*gpu, gpu_let]
    if draft.holds(added):
        return added
    if draft.alone:
        return None
    grown = [*(other.copy() for other in gpu), gpu_let]
    return grown if _grow(draft, grown, used(gpu) + room) and draft.holds(grown) else None


def _grow(draft: Draft, gpu: DraftGpu, limit: int) -> bool:
    """Raises sizes until each gpu-let serves its rate beside the others, or their sum would pass ``limit`` ticks."""
    grew = True
    while grew:
        grew = False
        for place, gpu_let in enumerate(gpu):
            others = gpu[:place] + gpu[place + 1 :]
            while draft.serve(gpu_let, others) is None:
                if used(gpu) >= limit:
                    return False
                gpu_let.ticks += 1
                grew = True
    return True


def used(gpu: DraftGpu) -> int:
    """Ticks taken."""
    return sum(gpu_let.ticks for gpu_let in gpu)


def join(draft: Draft, gpu: DraftGpu, gpu_let: DraftGpuLet, model: str, rate: float) -> bool:
    """The model takes turns with those on ``gpu_let``."""
    if model in gpu_let.rates or len(gpu_let.rates) >= draft.options.max_models:
        return False
    gpu_let.rates[model] = rate
    if draft.holds(gpu):
        return True
    del gpu_let.rates[model]
    return False


def raise_rate(draft: Draft, gpu: DraftGpu, gpu_let: DraftGpuLet, model: str, rate: float) -> float:
    """Gives ``gpu_let``, which serves this model alone, as much of ``rate`` as it can take; returns what it took."""
    served = draft.serve(gpu_let, [other for other in gpu if other is not gpu_let])
    assert served is not None
    taken = min(rate, served.capacities[0] - gpu_let.rates[model])
    if taken <= SLACK:
        return 0.0
    gpu_let.rates[model] += taken
    return taken


def enlarge(draft: Draft, gpu: DraftGpu, gpu_let: DraftGpuLet, model: str, rate: float) -> float:
    """Grows ``gpu_let``, which serves this model alone, into the free room; returns how much of ``rate`` it took."""
    room = draft.room(gpu)
    if room < 1:
        return 0.0
    before, had = gpu_let.ticks, gpu_let.rates[model]
    slowdown = draft.slowdown(model, [other for other in gpu if other is not gpu_let])
    ticks = draft.timing.smallest(model, had + rate, before + room, slowdown) or before + room
    gpu_let.ticks = ticks
    gpu_let.rates[model] = min(had + rate, draft.timing.capacity(model, ticks, slowdown).rate)
    if gpu_let.rates[model] > had + SLACK and draft.holds(gpu):
        return gpu_let.rates[model] - had
    gpu_let.ticks, gpu_let.rates[model] = before, had
    return 0.0


def place(draft: Draft, gpus: Iterable[DraftGpu], model: str, rate: float, *, share: bool = True) -> bool:
    """The whole rate on one gpu-let of one of ``gpus``: best fit, the cheapest in ticks first."""
    best: tuple[tuple[float, ...], DraftGpu, DraftGpu] | None = None
    for number, gpu in enumerate(gpus):
        if share and any(join(draft, gpu, gpu_let, model, rate) for gpu_let in gpu):
            return True
        added = with_new_gpu_let(draft, gpu, model, rate)
        if added is not None:
            more = used(added) - used(gpu)
            key = (more, draft.room(gpu) - more, neighbour_cost(draft, gpu, model), number)
            if best is None or key < best[0]:
                best = (key, gpu, added)
        for gpu_let in gpu if share else ():
            limit = draft.room(gpu) if best is None else min(draft.room(gpu), int(best[0][0]) - 1)
            grown = grown_to_share(draft, gpu, gpu_let, model, rate, limit=limit)
            if grown is not None:
                more = grown.ticks - gpu_let.ticks
                best = (
                    (more, draft.room(gpu) - more, 0.0, number),
                    gpu,
                    [grown if other is gpu_let else other for other in gpu],
                )
    if best is None:
        return False
    best[1][:] = best[2]
    return True


def grown_to_share(
    draft: Draft, gpu: DraftGpu, gpu_let: DraftGpuLet, model: str, rate: float, *, limit: int
) -> DraftGpuLet | None:
    """``gpu_let`` with up to ``limit`` more ticks, on which the model takes turns with the models that are there."""
    if model in gpu_let.rates or len(gpu_let.rates) >= draft.options.max_models:
        return None
    others = [other for other in gpu if other is not gpu_let]
    for more in range(1, limit + 1):
        grown = DraftGpuLet(gpu_let.ticks + more, {**gpu_let.rates, model: rate})
        if draft.serve(grown, others) is not None and draft.holds([*others, grown]):
            return grown
    return None


def absorb(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    """As much of the rate as these devices can take without a new one; returns what is left."""
    for move in (_into_slack, _into_one, _into_larger, _into_parts, _into_turns, _into_all):
        if rate > SLACK:
            rate = move(draft, gpus, model, rate)
    return rate if rate > SLACK else 0.0


def _into_slack(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    for gpu, gpu_let in _alone(gpus, model):
        if rate > SLACK:
            rate -= raise_rate(draft, gpu, gpu_let, model, rate)
    return rate


def _into_one(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    return 0.0 if place(draft, gpus, model, rate) else rate


def _into_larger(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    for gpu, gpu_let in _alone(sorted(gpus, key=draft.room), model):
        if rate > SLACK:
            rate -= enlarge(draft, gpu, gpu_let, model, rate)
    return rate


def _into_parts(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    """New gpu-lets in what is free, the most room first; each takes what it can."""
    for gpu in sorted(gpus, key=draft.room, reverse=True):
        if rate <= SLACK or place(draft, gpus, model, rate):
            return 0.0
        for room in range(draft.room(gpu), 0, -1):
            part = min(rate, draft.timing.capacity(model, room, draft.slowdown(model, gpu)).rate)
            added = with_new_gpu_let(draft, gpu, model, part) if part > SLACK else None
            if added is not None:
                gpu[:] = added
                rate -= part
                break
    return rate


def _into_turns(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    for part in (0.5, 0.25):
        for gpu in gpus:
            for gpu_let in gpu:
                if rate > SLACK and join(draft, gpu, gpu_let, model, rate * part):
                    rate -= rate * part
    return rate


def _into_all(draft: Draft, gpus: list[DraftGpu], model: str, rate: float) -> float:
    """One new gpu-let, and every model spread anew over those it has alone: some were too full for a neighbour."""
    if draft.alone:
        return rate
    for number in sorted(range(len(gpus)), key=lambda place: draft.room(gpus[place]), reverse=True)[:ROOMIEST]:
        room = draft.room(gpus[number])
        if room < 1:
            continue
        trial = [[gpu_let.copy() for gpu_let in gpu] for gpu in gpus]
        trial[number].append(DraftGpuLet(room, {model: rate}))
        spread(draft, trial)
        if all(draft.holds(gpu) for gpu in trial):
            for gpu, better in zip(gpus, trial, strict=True):
                gpu[:] = better
            return 0.0
    return rate


def spread(draft: Draft, gpus: Iterable[DraftGpu]) -> None:
    """Each model's rate over the gpu-lets it has alone, in proportion to what they serve beside their neighbours."""
    places: dict[str, list[tuple[DraftGpuLet, float]]] = {}
    for gpu in gpus:
        for gpu_let in gpu:
            if len(gpu_let.rates) == 1:
                (model,) = gpu_let.rates
                slowdown = draft.slowdown(model, [other for other in gpu if other is not gpu_let])
                places.setdefault(model, []).append(
                    (gpu_let, draft.timing.capacity(model, gpu_let.ticks, slowdown).rate)
                )
    for model, gpu_lets in places.items():
        total = sum(gpu_let.rates[model] for gpu_let, _ in gpu_lets)
        whole = sum(capacity for _, capacity in gpu_lets)
        for gpu_let, capacity in gpu_lets:
            gpu_let.rates[model] = total * capacity / whole if whole else 0.0


def _alone(gpus: Iterable[DraftGpu], model: str) -> list[tuple[DraftGpu, DraftGpuLet]]:
    """Where the model has a gpu-let for itself."""
    return [(gpu, gpu_let) for gpu in gpus for gpu_let in gpu if len(gpu_let.rates) == 1 and model in gpu_let.rates]


def neighbour_cost(draft: Draft, gpu: DraftGpu, model: str) -> float:
    """How much a model needs the same resources as its neighbours; 0 where types do not count."""
    if draft.options.blind:
        return 0.0
    return sum(
        gpu_let.ticks / draft.grid * max(interference.clash(draft.profiles, model, other) for other in gpu_let.rates)
        for gpu_let in gpu
    )
