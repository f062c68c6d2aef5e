"""Plans count devices from 0; the devices that live have numbers of their own, with holes where one died. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Gpu, Plan


def to_slots(plan: Plan, devices: Sequence[int]) -> Plan:
    """The plan in the planner's numbering: the living ``devices`` are 0, 1, ...; gpu-lets on others are left out."""
    slots = {device: slot for slot, device in enumerate(devices)}
    return _renumbered(plan, [(slots[gpu.index], gpu) for gpu in plan.gpus if gpu.index in slots])


def to_devices(plan: Plan, devices: Sequence[int]) -> Plan:
    """The planner's plan on the living ``devices``; it has at most this many."""
    return _renumbered(plan, [(devices[gpu.index], gpu) for gpu in plan.gpus])


def _renumbered(plan: Plan, gpus: list[tuple[int, Gpu]]) -> Plan:
    moved = (msgspec.structs.replace(gpu, index=index) for index, gpu in gpus)
    return msgspec.structs.replace(plan, gpus=tuple(sorted(moved, key=lambda gpu: gpu.index)))
