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


def chosen(columns: Sequence[Column], names: Set[str]) -> tuple[Column, ...]:
    """Those with ``names``; all if there are none."""
    return tuple(column for column in columns if not names or column.name in names)


def unpack(data: bytes, series: Set[int] | None = None, names: Set[str] = frozenset()) -> Moment:
    """The moment that was packed, or the part of it that is about ``series``, with the `chosen` columns.

    Raises ValueError for anything else.
    """
    try:
        raw = memoryview(zlib.decompress(data))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    groups, rest = _unpack(raw, GROUP_COLUMNS, series, names)
    devices, rest = _unpack(rest, DEVICE_COLUMNS, series, names)
    if rest:
        raise ValueError("a moment is longer than its columns")
    return Moment(groups, devices)


class Sums:
    """What the means of one series in ``intervals`` are made of: as many bytes, however many moments there are."""

    __slots__ = ("_columns", "_known", "_seen", "_totals")

    def __init__(self, columns: Sequence[Column], intervals: int = 1) -> None:
        self._columns = columns
        self._totals = array("d", bytes(8 * len(columns) * intervals))
        self._known = array("d", bytes(8 * len(columns) * intervals))  # seconds, or moments of one length
        self._seen = bytearray(intervals)

    def add(self, values: Sequence[float | None], interval: int = 0, weight: float = 1.0) -> None:
        """Takes a moment that lasted ``weight``."""
        self._seen[interval] = 1
        totals, known = self._totals, self._known
        for at, (column, value) in enumerate(
            zip(self._columns, values, strict=True), start=interval * len(self._columns)
        ):
            if value is None:
                continue
            if column.worst:
                totals[at] = max(totals[at], value) if known[at] else value
            else:
                totals[at] += value * weight
            known[at] += weight

    def seen(self, interval: int) -> bool:
        """Whether the series was in any of its moments."""
        return bool(self._seen[interval])

    def mean(self, interval: int, weight: float) -> Values:
        """The mean in the interval, whose moments lasted ``weight`` together; in the others it was not there."""
        first = interval * len(self._columns)
        return tuple(
            None if not known else total if column.worst else total / (weight if column.rate else known)
            for column, total, known in zip(
                self._columns,
                self._totals[first : first + len(self._columns)],
                self._known[first : first + len(self._columns)],
                strict=True,
            )
        )


class MomentSums:
    """Moments, one after another and each as long as the others, that become one; they have the `chosen` columns."""

    def __init__(self, names: Set[str] = frozenset()) -> None:
        self._count = 0
        self._groups: tuple[tuple[Column, ...], dict[int, Sums]] = (chosen(GROUP_COLUMNS, names), {})
        self._devices: tuple[tuple[Column, ...], dict[int, Sums]] = (chosen(DEVICE_COLUMNS, names), {})

    def add(self, moment: Moment) -> None:
        self._count += 1
        for (columns, sums), rows in ((self._groups, moment.groups), (self._devices, moment.devices)):
            for number, values in rows.items():
                if number not in sums:
                    sums[number] = Sums(columns)
                sums[number].add(values)

    def mean(self) -> Moment:
        groups, devices = (
            {number: found.mean(0, self._count) for number, found in sums.items()}
            for _, sums in (self._groups, self._devices)
        )
        return Moment(groups, devices)


def _pack(rows: dict[int, Values], columns: Sequence[Column]) -> bytes:
    # Column by column: numbers of one kind beside each other compress to a third.
    parts = [array("I", [len(rows), *rows]).tobytes()]
    for place, column in enumerate(columns):
        parts.append(column.pack(map(itemgetter(place), rows.values())))
    return b"".join(parts)


def _unpack(
    data: memoryview, columns: Sequence[Column], wanted: Set[int] | None, names: Set[str]
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
    parts = [(column, take(column.code, count)) for column in columns]
    values = [column.unpack(part, places) for column, part in parts if not names or column.name in names]
    rows = zip(*values, strict=True) if values else [()] * len(places)
    return dict(zip((series[place] for place in places), rows, strict=True)), data
