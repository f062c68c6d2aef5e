"""Which groups of SMs a gpu-let gets: pure. Groups are numbered; a gpu-let has a range of them."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Range(NamedTuple):
    """The groups first .. first + size - 1."""

    first: int
    size: int

    def overlap(self, other: Range) -> int:
        """How many groups both have."""
        return max(0, min(self.first + self.size, other.first + other.size) - max(self.first, other.first))


ROUNDING = 0.01  # of a group: shares come with a few digits


def groups_for(share: float, groups: int) -> int:
    """Whole groups in a share; at least one. The share is of the groups, not of the SMs: there may be SMs that fill no
    group (132 SMs of an H200 make 15 groups of 8), and shares that sum to the device must not need one group more."""
    return min(groups, max(1, floor(share * groups + ROUNDING)))


def place(
    wanted: Mapping[str, int], groups: int, before: Mapping[str, Range], ready: Collection[Range] = ()
) -> dict[str, Range]:
    """A range for each gpu-let, by name -> how many groups it needs.

    Ranges do not overlap unless more groups are wanted than there are; then as few as possible are shared. A gpu-let
    stays where it was if its size is the same; ``ready`` ranges, whose graphs are captured, are preferred after that.
    """
    if sum(wanted.values()) <= groups:
        for kept in (before, {}):
            placed = _place(wanted, groups, kept, ready)
            if placed is not None:
                return placed
        # Small ones may have cut the gaps of the large: one after the other always fits.
        placed, first = {}, 0
        for name, count in wanted.items():
            placed[name] = Range(first, count)
            first += count
        return placed
    crowded: dict[str, Range] = {}
    for name, count in sorted(wanted.items(), key=lambda item: (-item[1], item[0])):
        choices = (Range(first, count) for first in range(groups - count + 1))
        crowded[name] = min(choices, key=lambda r: (sum(r.overlap(o) for o in crowded.values()), r.first))
    return {name: crowded[name] for name in wanted}


def _place(
    wanted: Mapping[str, int], groups: int, before: Mapping[str, Range], ready: Collection[Range]
) -> dict[str, Range] | None:
    placed = {name: before[name] for name, count in wanted.items() if name in before and before[name].size == count}
    if any(a.overlap(b) for x, a in placed.items() for y, b in placed.items() if x < y):
        return None
    for name, count in sorted(wanted.items(), key=lambda item: (-item[1], item[0])):
        if name in placed:
            continue
        free = [
            Range(first, count)
            for first in range(groups - count + 1)
            if not any(Range(first, count).overlap(other) for other in placed.values())
        ]
        if not free:
            return None
        placed[name] = min(free, key=lambda r: (r not in ready, r.first))
    return placed
