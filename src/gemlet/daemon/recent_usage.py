"""The last two minutes, in memory: usage samples at up to 10 Hz. From them come measured shares, for status and top.

The server charges device time to a group when a grant ends or is sampled, so a share is a difference of two counters.
It corrects what it charged when a drain turns out shorter or longer than was thought, so a counter may fall a little.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gemlet.daemon.latency import Recent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemlet.daemon.latency import Latency
    from gemlet.daemon.native import GroupUsage, Snapshot

KEPT_SECONDS = 120.0
SAMPLE_SECONDS = 0.1
FORGOTTEN_AT_ONCE = 100  # values of a series
MOST = 2**63 - 1  # of a value
WINDOWS = {"1s": 1.0, "10s": 10.0, "60s": 60.0}

Key = tuple[bytes, str]  # device UUID, group
_NONE = Recent()


class Row(NamedTuple):
    """One group on one device at one moment: device time used so far, and bytes held."""

    device: bytes
    group: str
    used_ns: int
    memory: int


@dataclass(slots=True)
class Series:
    """Counters of one group on one device, or under the name "" of the device, one a tick from ``first`` on."""

    first: int
    used_ns: array[int] = field(default_factory=lambda: array("q"))
    memory: array[int] = field(default_factory=lambda: array("q"))

    def add(self, used_ns: int, memory: int) -> None:
        self.used_ns.append(min(used_ns, MOST))
        self.memory.append(min(memory, MOST))  # it is read from memory that programs can write

    def forget(self, before: int) -> None:
        """Drops what is older than the tick ``before``, if that is worth the copy."""
        old = before - self.first
        if old >= FORGOTTEN_AT_ONCE:
            del self.used_ns[:old], self.memory[:old]
            self.first = before


class Used(NamedTuple):
    """Since a group exists: device time it was charged for and work its programs completed, in ns; and submissions."""

    ns: int
    launches: int
    work_ns: int


class RecentUsage:
    """The samples, as one array a group and device, and totals. A tick is the number of a sample."""

    def __init__(self) -> None:
        self._most: dict[Key, int] = {}  # that a group was charged for: corrections take some of it away
        self._latencies: dict[Key, Recent] = {}
        self._times: deque[int] = deque(maxlen=int(KEPT_SECONDS / SAMPLE_SECONDS))  # ns of CLOCK_MONOTONIC
        self._next = 0  # tick
        self._series: dict[Key, Series] = {}
        self._gone: deque[tuple[Key, Series]] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Appends one sample, and forgets those that are too old."""
        seen: set[Key] = set()
        for device in snapshot.devices:
            spent = 0  # step by step: a group that goes is missing in later samples
            for group in device.groups:
                key = (device.uuid, group.name)
                series = self._of(key)
                # Corrections count in both directions: they move time from one group to another.
                spent += group.used_ns - (series.used_ns[-1] if series.used_ns else 0)
                series.add(group.used_ns, group.memory_used)
                self._most[key] = max(group.used_ns, self._most.get(key, 0))
                if group.latencies or key in self._latencies:
                    self._latencies.setdefault(key, Recent()).add(snapshot.now_ns, group.latencies)
                seen.add(key)
            whole = self._of((device.uuid, ""))
            whole.add((whole.used_ns[-1] if whole.used_ns else 0) + spent, 0)
            seen.add((device.uuid, ""))
        for key in self._series.keys() - seen:
            self._gone.append((key, self._series.pop(key)))
        for key in self._most.keys() - seen:  # one of the same name is another group
            del self._most[key]
            self._latencies.pop(key, None)
        if self._times and snapshot.now_ns < self._times[-1]:  # the clock is another one: what was before it stays so
            back = self._times[-1] - snapshot.now_ns + int(SAMPLE_SECONDS * 1e9)
            self._times = deque((at - back for at in self._times), self._times.maxlen)
        self._times.append(snapshot.now_ns)
        self._next += 1
        self._forget()

    def _of(self, key: Key) -> Series:
        return self._series.setdefault(key, Series(self._next))

    def _forget(self) -> None:
        # One sample stays from before, so that there is a share after a time in which nobody looked.
        while len(self._times) > 2 and self._times[-1] - self._times[1] > KEPT_SECONDS * 1e9:
            self._times.popleft()
        for series in self._series.values():
            series.forget(self._oldest)
        while self._gone and self._gone[0][1].first + len(self._gone[0][1].used_ns) <= self._oldest:
            self._gone.popleft()  # who went first is the first to be forgotten

    @property
    def _oldest(self) -> int:
        return self._next - len(self._times)

    def total(self, key: Key, group: GroupUsage) -> Used:
        """What it used since it exists. ``group``: how it is now."""
        most = self._most[key] = max(group.used_ns, self._most.get(key, 0))
        return Used(most, group.launches, group.work_ns)

    def latency(self, key: Key, group: GroupUsage) -> Latency | None:
        """How long its requests took; None if it had none. ``group``: how it is now."""
        return self._latencies.get(key, _NONE).latency(group.latencies, group.latency_sum_ns)

    def share(self, key: Key, seconds: float) -> float | None:
        """Measured share of the device over the last ``seconds`` (or as much of it as the group exists).

        None before there are two samples.
        """
        series = self._series.get(key)
        if series is None:
            return None
        begin = bisect_right(self._times, self._times[-1] - seconds * 1e9) - 1
        first = max(self._oldest + max(begin, 0), series.first)
        took = self._times[-1] - self._times[first - self._oldest]
        if took <= 0:
            return None
        return max(0.0, (series.used_ns[-1] - series.used_ns[first - series.first]) / took)

    def shares(self, key: Key) -> dict[str, float | None]:
        """The share over each of `WINDOWS`."""
        return {name: self.share(key, seconds) for name, seconds in WINDOWS.items()}

    def device_shares(self, uuid: bytes) -> dict[str, float]:
        """The use of all groups of a device together over each of `WINDOWS`, groups that came or went meanwhile
        included."""
        return {name: self.share((uuid, ""), seconds) or 0.0 for name, seconds in WINDOWS.items()}

    def since(self, seconds: float) -> Iterator[tuple[int, list[Row]]]:
        """Samples of the last ``seconds``, newest first: ns of CLOCK_MONOTONIC, and what each group had used."""
        kept = [*self._series.items(), *self._gone]
        for back, now_ns in enumerate(reversed(self._times), 1):
            if self._times[-1] - now_ns > seconds * 1e9:
                return
            tick = self._next - back
            yield (
                now_ns,
                [
                    Row(*key, series.used_ns[tick - series.first], series.memory[tick - series.first])
                    for key, series in kept
                    if key[1] and 0 <= tick - series.first < len(series.used_ns)
                ],
            )
