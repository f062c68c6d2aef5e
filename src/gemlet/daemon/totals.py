"""What groups used since the daemon started, by label: counters that never fall, and few of them. Pure.

A group that is removed takes its own counters along, and one of the same name may come after it. A label keeps what
all its groups used. Groups that `gemlet run` named itself have one label together, so that not every run has its own;
so have those that come while `MOST` labels are in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.attribution import divide
from gemlet.daemon.latency import Latency, Recent, difference
from gemlet.daemon.native import uuid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from gemlet.daemon.latency import Counts
    from gemlet.daemon.native import GroupUsage, Snapshot
    from gemlet.daemon.recent_usage import Key, Used

UNNAMED = "(unnamed)"
OTHERS = "(others)"
OUTSIDE = "(outside)"  # programs outside gemlet
SHARED = {UNNAMED, OTHERS, OUTSIDE}
MOST = 256  # labels of all devices; those without groups make room, the oldest first


class LabelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the groups of one label on one device since the daemon started. ``groups``: those there are now.

    ``used_s`` is what the groups were charged for: time in which they kept the device from others, pauses included.
    ``busy_s`` is their part of the time in which the driver found the device busy; all labels together have all of it.
    """

    device: int
    uuid: str
    label: str
    groups: tuple[str, ...]
    used_s: float
    busy_s: float
    throttled_s: float
    launches: int
    latency: Latency | None = None


@dataclass(slots=True)
class _Counters:
    """Of a group as it was last seen, or of a label."""

    used_ns: int = 0
    throttled_ns: int = 0
    launches: int = 0
    work_ns: int = 0
    requests: Counts = field(default_factory=dict)
    requests_ns: int = 0

    def grow(self, before: _Counters, now: _Counters) -> None:
        self.used_ns += max(0, now.used_ns - before.used_ns)
        self.throttled_ns += max(0, now.throttled_ns - before.throttled_ns)
        self.launches += max(0, now.launches - before.launches)
        self.work_ns += max(0, now.work_ns - before.work_ns)
        self.requests_ns += max(0, now.requests_ns - before.requests_ns)
        for number, count in difference(now.requests, before.requests).items():
            self.requests[number] = self.requests.get(number, 0) + count


@dataclass(slots=True)
class _Label:
    counters: _Counters = field(default_factory=_Counters)
    spread_ns: int = 0  # of what was used: the part that `spread` has seen
    worked_ns: int = 0  # the same of what was completed
    quiet_s: float = 0.0  # since something was completed last
    busy_s: float = 0.0
    recent: Recent = field(default_factory=Recent)
    groups: set[str] = field(default_factory=set)

    def take(self, seconds: float) -> tuple[float, float]:
        """Seconds charged and completed in the last ``seconds``. A long kernel counts when it ends, for no longer than
        nothing was completed before it: more than that is not believed, for programs can write what they please."""
        used, worked = self.counters.used_ns - self.spread_ns, self.counters.work_ns - self.worked_ns
        self.spread_ns, self.worked_ns = self.counters.used_ns, self.counters.work_ns
        self.quiet_s += seconds
        completed = min(worked / 1e9, self.quiet_s)
        if worked:
            self.quiet_s = 0.0
        return used / 1e9, completed


class Totals:
    """Labels in use, and those whose groups have gone."""

    def __init__(self) -> None:
        self._groups: dict[Key, tuple[str, _Counters]] = {}  # label, and the counters as last seen
        self._labels: dict[tuple[bytes, str], _Label] = {}  # who was used last is last
        self._devices: dict[bytes, _Counters] = {}
        self._busy: dict[bytes, float] = {}
        self._taken: dict[bytes, dict[tuple[bytes, str], tuple[float, float]]] = {}  # what `spread` divided by last
        self._open: dict[bytes, float] = {}  # busy seconds that nobody is seen to have used yet
        self._indices: dict[bytes, int] = {}

    def add(self, snapshot: Snapshot, total: Callable[[Key, GroupUsage], Used], named: Callable[[str], bool]) -> None:
        """Takes in what ``snapshot`` shows. ``total``: of a group, never falls; ``named``: whether somebody chose
        the group's name."""
        seen: set[Key] = set()
        for device in snapshot.devices:
            self._indices[device.uuid] = device.index
            whole = self._devices.setdefault(device.uuid, _Counters())
            for group in device.groups:
                key = (device.uuid, group.name)
                seen.add(key)
                used = total(key, group)
                now = _Counters(
                    used_ns=used.ns,
                    throttled_ns=group.throttled_ns,
                    launches=used.launches,
                    work_ns=used.work_ns,
                    requests=dict(group.latencies),
                    requests_ns=group.latency_sum_ns,
                )
                if key not in self._groups:
                    self._groups[key] = self._label_for(key, named=named(group.name)), _Counters()
                name, before = self._groups[key]
                label = self._labels[device.uuid, name]
                label.counters.grow(before, now)
                label.recent.add(snapshot.now_ns, label.counters.requests.items())
                whole.grow(before, now)
                self._groups[key] = name, now
        for key in self._groups.keys() - seen:
            self._leave(key)
        if gone := self._indices.keys() - {device.uuid for device in snapshot.devices}:
            self._forget(gone)

    def _forget(self, gone: Set[bytes]) -> None:
        """Devices that programs made up, of which there may be any number, one after the other."""
        self._labels = {key: label for key, label in self._labels.items() if key[0] not in gone}
        for uuid in gone:
            del self._indices[uuid], self._devices[uuid]

    def spread(self, seconds: float, busy: Mapping[bytes, float | None], outside: Set[bytes]) -> None:
        """Divides among labels the part of the last ``seconds`` in which each device was ``busy`` (0..1), by what their
        groups completed and were charged for meanwhile (`divide`). ``outside``: devices that others use, too.

        What nobody inside or outside is seen to have used is divided at the next call, by what is seen then."""
        for uuid, part in busy.items():
            if part is None:
                continue
            whole = part * seconds
            taken = {key: label.take(seconds) for key, label in self._labels.items() if key[0] == uuid}
            before, self._taken[uuid] = self._taken.get(uuid, {}), taken
            late = self._open.pop(uuid, 0.0)
            if uuid not in outside and not _any_used(taken):
                # The driver's answer is of a moment before: those that used the device then may have ended since.
                taken = {key: before[key] for key in taken if key in before}
                if not _any_used(taken):  # or have just begun
                    self._open[uuid], whole = whole, 0.0
            whole += late
            self._busy[uuid] = self._busy.get(uuid, 0.0) + whole
            parts, rest = divide(
                whole,
                [used for used, _ in taken.values()],
                [done for _, done in taken.values()],
                outside=uuid in outside,
            )
            for key, own in zip(taken, parts, strict=True):
                self._labels[key].busy_s += own
            if rest > 0:
                self._labels.setdefault((uuid, OUTSIDE), _Label()).busy_s += rest

    def labels(self) -> tuple[LabelStatus, ...]:
        """All counters, by device and label."""
        found = [
            LabelStatus(
                device=self._indices[uuid],
                uuid=uuid_text(uuid),
                label=name,
                groups=tuple(sorted(label.groups)),
                used_s=label.counters.used_ns / 1e9,
                busy_s=label.busy_s,
                throttled_s=label.counters.throttled_ns / 1e9,
                launches=label.counters.launches,
                latency=label.recent.latency(label.counters.requests.items(), label.counters.requests_ns),
            )
            for (uuid, name), label in self._labels.items()
        ]
        return tuple(sorted(found, key=lambda one: (one.device, one.label)))

    def device(self, uuid: bytes) -> tuple[float, float]:
        """Seconds of a device that all groups used, those without a label any more included; and that it was busy."""
        return self._devices.get(uuid, _Counters()).used_ns / 1e9, self._busy.get(uuid, 0.0)

    def _label_for(self, key: Key, *, named: bool) -> str:
        uuid, name = key
        label = name if named else UNNAMED
        if named and (uuid, label) not in self._labels and len(self._labels) >= MOST:
            free = next((one for one, kept in self._labels.items() if not kept.groups and one[1] not in SHARED), None)
            if free is None:
                label = OTHERS
            else:
                del self._labels[free]
        self._labels.setdefault((uuid, label), _Label()).groups.add(name)
        return label

    def _leave(self, key: Key) -> None:
        uuid, name = key
        place = uuid, self._groups.pop(key)[0]
        label = self._labels.pop(place)
        label.groups.discard(name)
        self._labels[place] = label  # who went last is the last to make room


def _any_used(taken: Mapping[tuple[bytes, str], tuple[float, float]]) -> bool:
    return any(used or done for used, done in taken.values())
