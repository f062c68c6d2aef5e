"""The measurements of a model, the most informative first, so that a budget that ends early leaves a usable profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.serve.profiles.profile import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BATCHES = (1, 2, 4, 8, 16, 32)
PARTS = (1.0, 1 / 16, 1 / 4, 1 / 2, 1 / 8, 3 / 4)  # of the groups of SMs, in the order of measuring
PROBED = (1 / 2, 1 / 4)  # of the groups: the model's part beside a stressor
QUICK_PARTS, QUICK_BATCHES = (1.0, 1 / 16), (1, 32)  # the ends: what lies between follows, what lies beyond does not


class Latency(msgspec.Struct, frozen=True, tag="latency"):
    """The latencies of all these batches on this many groups of SMs; with all groups, on the whole device."""

    groups: int
    batches: tuple[int, ...]


class Probes(msgspec.Struct, frozen=True, tag="probes"):
    """The model on this many groups beside each stressor on the others, with this batch."""

    groups: int
    batch: int
    resources: tuple[str, ...] = RESOURCES


Step = Latency | Probes


def steps(groups: int, max_batch: int, *, quick: bool = False) -> list[Step]:
    """For a device of this many groups and a model with that largest batch."""
    limit = max(1, max_batch)
    batches = tuple(sorted({min(b, limit) for b in (QUICK_BATCHES if quick else BATCHES)}))
    sizes = _distinct(max(1, round(part * groups)) for part in (QUICK_PARTS if quick else PARTS))
    probed = [g for g in _distinct(round(part * groups) for part in PROBED) if 0 < g < groups]
    loads = (batches[-1],) if quick or len(batches) < 3 else (batches[-1], batches[len(batches) // 2 - 1])
    latencies: list[Step] = [Latency(size, batches) for size in sizes]
    probes: list[Step] = [Probes(size, batch) for size in probed[: 1 if quick else None] for batch in loads]
    return latencies[:3] + probes + latencies[3:]


def share(groups: int, of: int) -> float:
    """The share of this many groups in a plan. SMs that fill no group belong only to the whole device."""
    return round(groups / of, 6)


def _distinct(values: Iterable[int]) -> Sequence[int]:
    return list(dict.fromkeys(values))
