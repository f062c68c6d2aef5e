"""What the recorded history keeps of a moment: one table of columns, packed into few bytes; and means of moments.

A `Moment` stands for the interval that ends at its time. What is counted (device time, waits, bytes moved) is a rate in
it, and the rest is a level, so the mean of several moments is a moment again, of a longer interval.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

FORMAT = 2  # of packed moments; a store of another one is begun anew
# Why a client waits: as the arbiter says it (kWhyNames of the native server), and while its memory is on the host.
REASONS = ("shares", "always", "both busy", "ahead", "behind", "slowed", "unverified", "memory")

Values = tuple["float | None", ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity. ``step``: what it is rounded to. ``code``: the array type that keeps it, whose largest value stands
    for None and bounds the rest. ``rate``: it counts as 0 where it is not there. ``worst``: of several the largest
    stands for all, not the mean.
    """

    name: str
    step: float
    code: Literal["H", "I"] = "H"
    rate: bool = False
    worst: bool = False

    @property
    def most(self) -> int:
        """The largest number of steps."""
        return _MOST[self.code] - 1

    def pack(self, values: Iterable[float | None]) -> bytes:
        step, most = self.step, self.most
        packed = (
            most + 1 if v is None else 0 if v <= 0 else most if v >= most * step else int(v / step + 0.5)
            for v in values
        )
        return array(self.code, packed).tobytes()

    def unpack(self, data: memoryview, places: Iterable[int]) -> list[float | None]:
        """The values at ``places``."""
        step, none = self.step, self.most + 1
        kept = data.cast(self.code)
        return [None if (v := kept[place]) == none else v * step for place in places]


_MOST = {"H": 2**16 - 1, "I": 2**32 - 1}
PART = 1e-4  # of shares
PAGE = 65536.0  # of sizes, in bytes

# Shares and speeds are parts, sizes bytes, throttled and waits parts of the time, moved bytes and requests a second,
# p50 and p99 seconds, power watts and temperature degrees Celsius. `share` is what was used, `target` what was due,
# `min` and `max` what was promised.
GROUP_COLUMNS = (
    Column("share", PART, rate=True),
    Column("target", PART, rate=True),
    Column("min", PART),
    Column("max", PART),
    Column("speed", PART),
    Column("clients", 1.0, rate=True),
    Column("memory", PAGE, "I"),
    Column("resident", PAGE, "I"),
    Column("swapped", PAGE, "I"),
    Column("moved", PAGE, "I", rate=True),
    Column("throttled", PART, rate=True),
    Column("requests", 0.01, "I", rate=True),
    Column("p50", 1e-5, "I"),
    Column("p99", 1e-5, "I", worst=True),
    *(Column(f"waits {reason}", PART, rate=True) for reason in REASONS),
)
DEVICE_COLUMNS = (
    Column("busy", PART),
    Column("share", PART, rate=True),
    Column("memory", PAGE, "I"),
    Column("power", 0.1),
    Column("temperature", 0.1),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """Values by number of the series, in the order of the columns."""

    groups: dict[int, Values] = field(default_factory=dict)
    devices: dict[int, Values] = field(default_factory=dict)

    def pack(self) -> bytes:
        """A few bytes a series; see `unpack`."""
        return zlib.compress(_pack(self.groups, GROUP_COLUMNS) + _pack(self.devices, DEVICE_COLUMNS), 6)


def unpack(data: bytes, series: Set[int] | None = None) -> Moment:
    """The moment that was packed, or the part of it that is about ``series``. Raises ValueError for anything else."""
    try:
        raw = memoryview(zlib.decompress(data))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    groups, rest = _unpack(raw, GROUP_COLUMNS, series)
    devices, rest = _unpack(rest, DEVICE_COLUMNS, series)
    if rest:
        raise ValueError("a moment is longer than its columns")
    return Moment(groups, devices)


def mean(moments: Sequence[Moment]) -> Moment:
    """The moments, one after another and each as long as the others, as one."""
    return Moment(
        _mean([moment.groups for moment in moments], GROUP_COLUMNS),
        _mean([moment.devices for moment in moments], DEVICE_COLUMNS),
    )


def mean_of(values: Sequence[Sequence[float | None]], columns: Sequence[Column], count: int) -> Values:
    """Mean of one series' ``values`` among ``count`` moments; in the others it was not there."""
    found: list[float | None] = []
    for column, kept in zip(columns, zip(*values, strict=True), strict=True):
        known = [value for value in kept if value is not None]
        parts = count if column.rate else len(known)
        found.append((max(known) if column.worst else sum(known) / parts) if known else None)
    return tuple(found)


def _mean(moments: list[dict[int, Values]], columns: Sequence[Column]) -> dict[int, Values]:
    found: dict[int, list[Values]] = {}
    for moment in moments:
        for series, values in moment.items():
            found.setdefault(series, []).append(values)
    return {series: mean_of(values, columns, len(moments)) for series, values in found.items()}


def _pack(rows: dict[int, Values], columns: Sequence[Column]) -> bytes:
    # Column by column: numbers of one kind beside each other compress to a third.
    parts = [array("I", [len(rows), *rows]).tobytes()]
    for place, column in enumerate(columns):
        parts.append(column.pack(map(itemgetter(place), rows.values())))
    return b"".join(parts)


def _unpack(
    data: memoryview, columns: Sequence[Column], wanted: Set[int] | None
) -> tuple[dict[int, Values], memoryview]:
    def take(code: str, count: int) -> memoryview:
        nonlocal data
        size = array(code).itemsize * count
        if len(data) < size:
            raise ValueError("a moment is shorter than its columns")
        taken, data = data[:size], data[size:]
        return taken

    [count] = take("I", 1).cast("I")
    series = take("I", count).cast("I").tolist()
    places = [place for place, number in enumerate(series) if wanted is None or number in wanted]
    values = [column.unpack(take(column.code, count), places) for column in columns]
    return dict(zip((series[place] for place in places), zip(*values, strict=True), strict=True)), data
