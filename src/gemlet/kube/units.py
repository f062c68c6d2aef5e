"""GaiaGPU's units: hundredths of a GPU's time and 256 MiB of its memory, as two resources. Pure.

The scheduler and the kubelet count a node's units together and do not know single GPUs. So the units of a container say
how much it is to get, and the agent says of which GPU: of the one that most of them are named after, if that one has
room, else of another. A container that has room on no GPU does not start before there is some; it never runs with less
or more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gemlet.config.quantities import MIB
from gemlet.kube import names
from gemlet.kube.request import Amounts, BadRequest
from gemlet.kube.slots import gpu_of, short_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.kube.inventory import Gpu

MEMORY_UNIT = 256 * MIB
COMPUTE_UNITS = 100
# Memory units of a GPU that have its whole UUID in their names: of 512 GiB. Of more, eight GPUs would not go into one
# message of the kubelet's.
MOST_WITH_UUID = 2048


def compute_ids(gpu: Gpu) -> list[str]:
    """The names of a GPU's compute units."""
    return [f"{gpu.uuid}::c{number}" for number in range(COMPUTE_UNITS)]


def memory_ids(gpu: Gpu) -> list[str]:
    """The names of a GPU's memory units. Which kind of names, the GPU alone decides: they stay what they are when
    others come or go, since the kubelet keeps them by pod."""
    count = gpu.memory // MEMORY_UNIT
    name = gpu.uuid if count <= MOST_WITH_UUID else short_name(gpu.uuid)
    return [f"{name}::m{number}" for number in range(count)]


def named_after(ids: Sequence[str]) -> str:
    """The UUID of the GPU that most of ``ids`` are named after."""
    return gpu_for(ids, {})


def gpu_for(ids: Sequence[str], left: Mapping[str, int]) -> str:
    """The UUID of the GPU on which a container gets as much time as it has ``ids``.

    ``left``: percent of each GPU's time that nobody has. If no GPU has enough, the one that most ids are named after.
    """
    count = Counter(gpu_of(device) for device in ids)
    return min({*left, *count}, key=lambda uuid: (left.get(uuid, 0) < len(ids), -count[uuid], -left.get(uuid, 0), uuid))


def paired(compute: Sequence[str], memory: Sequence[str]) -> Amounts:
    """The share of a container that has these units. Raises BadRequest if it has none of the one or of the other."""
    for resource, ids, other in (
        (names.MEMORY_RESOURCE, memory, names.COMPUTE_RESOURCE),
        (names.COMPUTE_RESOURCE, compute, names.MEMORY_RESOURCE),
    ):
        if not ids:
            raise BadRequest(f"resources.limits[{resource}]", "is missing", hint=f"ask for both it and {other}")
    return Amounts(memory=len(memory) * MEMORY_UNIT, compute=len(compute), limit=len(compute))
