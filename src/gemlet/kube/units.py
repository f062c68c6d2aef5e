"""GaiaGPU's units: hundredths of a GPU's time and 256 MiB of its memory, as two resources. Pure.

The scheduler counts a node's units and does not know single GPUs, so a container's units may end up on two GPUs. A hint
asks for one GPU (`slots.preferred`). A container for which that fails is refused before it starts, and never runs with
less or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.config.quantities import MIB
from gemlet.kube import names
from gemlet.kube.request import Amounts, BadRequest
from gemlet.kube.slots import gpu_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.kube.inventory import Gpu

MEMORY_UNIT = 256 * MIB
COMPUTE_UNITS = 100


def compute_ids(gpu: Gpu) -> list[str]:
    """The names of a GPU's compute units."""
    return [f"{gpu.uuid}::c{number}" for number in range(COMPUTE_UNITS)]


def memory_ids(gpu: Gpu) -> list[str]:
    """The names of a GPU's memory units."""
    return [f"{gpu.uuid}::m{number}" for number in range(gpu.memory // MEMORY_UNIT)]


def only_gpu(resource: str, ids: Sequence[str]) -> str:
    """The UUID of the GPU that all ``ids`` are of. Raises BadRequest if they are of several or of none."""
    gpus = sorted({gpu_of(device) for device in ids})
    if len(gpus) != 1:
        raise BadRequest(
            f"resources.limits[{resource}]",
            f"{len(ids)} units do not fit on one GPU of this node, only on {len(gpus)} together",
            hint="ask for less, or use a ResourceClaim, with which the scheduler knows each GPU",
        )
    return gpus[0]


def paired(compute: Sequence[str], memory: Sequence[str]) -> Amounts:
    """The share of a container that has these units. Raises BadRequest unless both are of one and the same GPU."""
    for resource, ids, other in (
        (names.MEMORY_RESOURCE, memory, names.COMPUTE_RESOURCE),
        (names.COMPUTE_RESOURCE, compute, names.MEMORY_RESOURCE),
    ):
        if not ids:
            raise BadRequest(f"resources.limits[{resource}]", "is missing", hint=f"ask for both it and {other}")
    first, second = only_gpu(names.COMPUTE_RESOURCE, compute), only_gpu(names.MEMORY_RESOURCE, memory)
    if first != second:
        raise BadRequest(
            f"resources.limits[{names.MEMORY_RESOURCE}]",
            f"memory is left only on {second}, and time was allocated on {first}",
            hint="ask for less, or use a ResourceClaim, with which the scheduler knows each GPU",
        )
    return Amounts(memory=len(memory) * MEMORY_UNIT, compute=len(compute), limit=len(compute))
