"""In which order a node's GPUs are to be taken. Pure.

The stock scheduler takes the first device of a ResourceSlice that fits, and the kubelet asks which slots to give: the
order is what a node has to say.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Packing = Literal["pack", "spread"]


def order(islands: Mapping[str, str | None], taken: Mapping[str, float], packing: Packing) -> list[str]:
    """The UUIDs of ``islands``, which to take first first.

    ``islands``: the NVLink island of each GPU, None for one on none. ``taken``: how much of it is. ``pack`` takes what
    is left of the GPU that is used most, and the next whole GPU from the island with the fewest whole ones, so that
    whole islands stay for claims of several GPUs. ``spread`` takes the GPU that is used least, on the island that is.
    """
    place = {uuid: island or uuid for uuid, island in islands.items()}
    whole = Counter(place[uuid] for uuid in islands if not taken.get(uuid))
    used = dict.fromkeys(place.values(), 0.0)
    for uuid, island in place.items():
        used[island] += taken.get(uuid, 0)
    number = {uuid: index for index, uuid in enumerate(islands)}

    def pack(uuid: str) -> tuple[float, float, int]:
        island = place[uuid]
        return -taken.get(uuid, 0), whole[island], number[uuid]

    def spread(uuid: str) -> tuple[float, float, int]:
        return taken.get(uuid, 0), used[place[uuid]], number[uuid]

    return sorted(islands, key=pack if packing == "pack" else spread)
