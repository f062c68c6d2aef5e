"""The steps by which one plan takes over from another, in their order. Pure.

The first steps do not disturb requests: missing weights are loaded beside the running models. Then the devices whose
gpu-lets change are divided anew (running batches end where they run), the dispatcher adopts the plan, and last the
weights that no gpu-let needs any more are unloaded. Where old and new weights do not fit beside each other, the models
that leave that device stop being sent there, are unloaded, and only then the others come: `Adopt` of a plan in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet


@dataclass(frozen=True, slots=True)
class Load:
    gpu: int
    model: str


@dataclass(frozen=True, slots=True)
class Partition:
    """The gpu-lets of a device from now on; none: the device is not used any more."""

    gpu: int
    gpu_lets: tuple[PlannedGpuLet, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """Requests go by this plan from now on."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Unload:
    """When nothing of this model runs there any more."""

    gpu: int
    model: str


Step = Load | Partition | Adopt | Unload


def steps(old: Plan | None, new: Plan, *, fits: Callable[[int, frozenset[str]], bool] | None = None) -> list[Step]:
    """What turns ``old`` into ``new``. ``fits``: may a device hold the weights of all these models at once?"""
    before = {} if old is None else _by_index(old)
    after = _by_index(new)
    devices = sorted({*before, *after})
    loads = [Load(gpu, model) for gpu in devices for model in sorted(_models(after, gpu) - _models(before, gpu))]
    unloads = [Unload(gpu, model) for gpu in devices for model in sorted(_models(before, gpu) - _models(after, gpu))]
    splits = [
        Partition(gpu, after[gpu].gpu_lets if gpu in after else ())
        for gpu in devices
        if _shape(before.get(gpu)) != _shape(after.get(gpu))
    ]
    tight = {
        gpu
        for gpu in {load.gpu for load in loads}
        if fits is not None and not fits(gpu, _models(before, gpu) | _models(after, gpu))
    }
    if old is None or not tight:
        return [*loads, *splits, Adopt(new), *unloads]
    between = _between(old, new, tight)
    return [
        *(load for load in loads if load.gpu not in tight),
        *(split for split in splits if split.gpu not in tight),
        Adopt(between),
        *(unload for unload in unloads if unload.gpu in tight),
        *(load for load in loads if load.gpu in tight),
        *(split for split in splits if split.gpu in tight),
        Adopt(new),
        *(unload for unload in unloads if unload.gpu not in tight),
    ]


def stages(
    old: Plan | None, new: Plan, *, fits: Callable[[int, frozenset[str]], bool] | None = None
) -> tuple[Plan, ...]:
    """The plans to bring into force one after the other: ``new``, or one in between and then ``new``.

    For a fleet that does the steps of each plan by itself, in the order above.
    """
    return tuple(step.plan for step in steps(old, new, fits=fits) if isinstance(step, Adopt))


def moved(old: Plan | None, new: Plan) -> tuple[int, int]:
    """How many gpu-lets of ``new`` were there before, with share, models and batches on that device; how many not."""
    left = [] if old is None else [(gpu.index, _kind(gpu_let)) for gpu in old.gpus for gpu_let in gpu.gpu_lets]
    stayed = total = 0
    for gpu in new.gpus:
        for gpu_let in gpu.gpu_lets:
            total += 1
            if (gpu.index, _kind(gpu_let)) in left:
                left.remove((gpu.index, _kind(gpu_let)))
                stayed += 1
    return stayed, total - stayed


def _between(old: Plan, new: Plan, tight: Iterable[int]) -> Plan:
    """``new``, but on the tight devices still ``old`` without the models that leave them."""
    before, after = _by_index(old), _by_index(new)
    gpus = [gpu for index, gpu in after.items() if index not in tight]
    for index in tight:
        if index in before:
            staying = _models(after, index)
            gpu_lets = (_only(gpu_let, staying) for gpu_let in before[index].gpu_lets)
            gpus.append(
                msgspec.structs.replace(before[index], gpu_lets=tuple(gpu_let for gpu_let in gpu_lets if gpu_let.tasks))
            )
    return msgspec.structs.replace(new, gpus=tuple(sorted((g for g in gpus if g.gpu_lets), key=lambda gpu: gpu.index)))


def _only(gpu_let: PlannedGpuLet, models: Iterable[str]) -> PlannedGpuLet:
    return msgspec.structs.replace(gpu_let, tasks=tuple(task for task in gpu_let.tasks if task.model in models))


def _by_index(plan: Plan) -> dict[int, Gpu]:
    return {gpu.index: gpu for gpu in plan.gpus}


def _models(gpus: Mapping[int, Gpu], index: int) -> frozenset[str]:
    return (
        frozenset(task.model for gpu_let in gpus[index].gpu_lets for task in gpu_let.tasks)
        if index in gpus
        else frozenset()
    )


def _kind(gpu_let: PlannedGpuLet) -> tuple[float, tuple[tuple[str, int], ...]]:
    return round(gpu_let.sm, 6), tuple(sorted((task.model, task.batch) for task in gpu_let.tasks))


def _shape(gpu: Gpu | None) -> list[tuple[float, tuple[tuple[str, int], ...]]]:
    return [] if gpu is None else [_kind(gpu_let) for gpu_let in gpu.gpu_lets]
