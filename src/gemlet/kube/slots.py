"""Slots: each GPU in N equal parts, a container takes exactly one. Pure.

Only with slots does the stock scheduler place shares of a GPU correctly by counting alone: a slot is never on two GPUs.
"""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from gemlet.config.quantities import MIB
from gemlet.kube import names
from gemlet.kube.request import Amounts, BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gemlet.kube.inventory import Gpu

_SEPARATOR = "::"
_GPU = "GPU-"
_HEX = re.compile(r"[0-9a-f]{32}")
_SHORT = 22  # characters of base64 that 16 bytes take


def slot_ids(gpu: Gpu, per_gpu: int) -> list[str]:
    """The names the kubelet knows the slots by; at most 63 characters."""
    return [f"{gpu.uuid}{_SEPARATOR}{number}" for number in range(per_gpu)]


def short_name(gpu: str) -> str:
    """A GPU's UUID in 22 characters in place of 40, for ids of which there are many; itself if it is no such UUID."""
    digits = gpu.removeprefix(_GPU).replace("-", "")
    if not _HEX.fullmatch(digits):
        return gpu
    short = base64.urlsafe_b64encode(bytes.fromhex(digits))[:_SHORT].decode()
    return short if long_name(short) == gpu else gpu


@functools.lru_cache(maxsize=1024)
def long_name(name: str) -> str:
    """The UUID that `short_name` made ``name`` of."""
    if len(name) != _SHORT:
        return name
    try:
        return _GPU + str(UUID(bytes=base64.urlsafe_b64decode(f"{name}==")))
    except ValueError:
        return name


def gpu_of(device_id: str) -> str:
    """The UUID of the GPU that a slot or a unit is of."""
    return long_name(device_id.partition(_SEPARATOR)[0])


def slot_amounts(gpu: Gpu, per_gpu: int) -> Amounts:
    """What a slot has: an equal part of memory and time, and no more time than that until an annotation says so."""
    compute = 100 // per_gpu
    return Amounts(memory=gpu.memory // per_gpu // MIB * MIB, compute=compute, limit=compute)


def only_slot(ids: Sequence[str]) -> str:
    """The slot a container is to have. Raises BadRequest for several: they could be on different GPUs."""
    if len(ids) != 1:
        raise BadRequest(
            f"resources.limits[{names.SLOT_RESOURCE}]",
            f"a container takes exactly one slot, not {len(ids)}",
            hint="ask for 1; for another size, ask by annotations or by a ResourceClaim",
        )
    return ids[0]


def preferred(
    available: Iterable[str], must: Sequence[str], size: int, ranks: Sequence[str], near: str | None = None
) -> list[str]:
    """Which ``size`` of ``available`` to give: all of one GPU where that can be, the first of ``ranks`` with enough.

    ``must`` comes first and is part of ``available``; ``near`` is the GPU to try before all others. The kubelet treats
    the answer as a hint.
    """
    chosen = list(must)
    free = sorted(set(available) - set(chosen), key=_by_number)
    per_gpu = Counter(gpu_of(device) for device in free)
    wanted = size - len(chosen)
    if wanted <= 0:
        return chosen[:size]
    tied = Counter(gpu_of(device) for device in chosen)
    place = {uuid: number for number, uuid in enumerate(ranks)}

    def rank(uuid: str) -> tuple[bool, bool, bool, int, str]:
        return (uuid not in tied, per_gpu[uuid] < wanted, uuid != near, place.get(uuid, len(place)), uuid)

    for uuid in sorted(per_gpu, key=rank):
        chosen += [device for device in free if gpu_of(device) == uuid][: size - len(chosen)]
        if len(chosen) == size:
            break
    return chosen


def _by_number(device_id: str) -> tuple[str, int, str]:
    uuid, _, number = device_id.partition(_SEPARATOR)
    digits = "".join(character for character in number if character.isdigit())
    return uuid, int(digits or 0), number
