"""Two minutes of usage samples at up to 10 Hz: from them come measured shares, for status, top and metrics.

The server charges device time to a group when a grant ends or is sampled, so a share is a difference of two counters.
It corrects what it charged when a drain turns out shorter or longer than was thought, so a counter may fall a little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.daemon.native import GroupUsage, Snapshot

KEPT_SECONDS = 120.0
SAMPLE_SECONDS = 0.1
WINDOWS = {"1s": 1.0, "10s": 10.0, "60s": 60.0}

Key = tuple[bytes, str]  # device UUID, group


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one moment: ``now_ns`` of CLOCK_MONOTONIC, device time used so far, bytes held."""

    now_ns: int
    used_ns: dict[Key, int]
    memory: dict[Key, int]


@dataclass(slots=True)
class Total:
    """Counters of one group that never fall: clients go, and corrections move time from one group to another."""

    used_ns: int = 0
    gone: int = 0  # submissions of clients that have left
    launches: dict[int, int] = field(default_factory=dict)  # by client

    def add(self, group: GroupUsage) -> None:
        """Takes in what ``group`` shows now."""
        self.used_ns = max(self.used_ns, group.used_ns)
        now = {client.id: client.launches for client in group.clients}
        self.gone += sum(count for client, count in self.launches.items() if client not in now)
        self.launches = {client: max(count, self.launches.get(client, 0)) for client, count in now.items()}


class History:
    """The ring of samples, and totals."""

    def __init__(self) -> None:
        self._totals: dict[Key, Total] = {}
        self._samples: deque[Sample] = deque(maxlen=int(KEPT_SECONDS / SAMPLE_SECONDS))

    def add(self, snapshot: Snapshot) -> None:
        """Appends one sample."""
        used: dict[Key, int] = {}
        memory: dict[Key, int] = {}
        for device in snapshot.devices:
            for group in device.groups:
                used[device.uuid, group.name] = group.used_ns
                memory[device.uuid, group.name] = group.memory_used
                self._totals.setdefault((device.uuid, group.name), Total()).add(group)
        for key in self._totals.keys() - used.keys():  # one of the same name is another group
            del self._totals[key]
        self._samples.append(Sample(snapshot.now_ns, used, memory))

    def total(self, key: Key, group: GroupUsage) -> tuple[int, int]:
        """Device time used, in ns, and submissions, since the group exists. ``group``: how it is now."""
        total = self._totals.setdefault(key, Total())
        total.add(group)
        return total.used_ns, total.gone + sum(total.launches.values())

    def share(self, key: Key, seconds: float) -> float | None:
        """Measured share of the device over the last ``seconds`` (or as much of it as the group exists).

        None before there are two samples.
        """
        if not self._samples:
            return None
        last = self._samples[-1]
        first = None
        for sample in reversed(self._samples):
            if key not in sample.used_ns:
                break
            first = sample
            if last.now_ns - sample.now_ns >= seconds * 1e9:
                break
        if first is None or first is last:
            return None
        return max(0.0, (last.used_ns[key] - first.used_ns[key]) / (last.now_ns - first.now_ns))

    def shares(self, key: Key) -> dict[str, float | None]:
        """The share over each of `WINDOWS`."""
        return {name: self.share(key, seconds) for name, seconds in WINDOWS.items()}

    def device_shares(self, uuid: bytes) -> dict[str, float]:
        """The use of all groups of a device together over each of `WINDOWS`, groups that came or went meanwhile
        included."""
        return {name: self._device_share(uuid, seconds) for name, seconds in WINDOWS.items()}

    def _device_share(self, uuid: bytes, seconds: float) -> float:
        samples = self.since(seconds)
        if len(samples) < 2:
            samples = list(self._samples)[-2:]
        if len(samples) < 2:
            return 0.0
        # Step by step: a group that has gone is missing in the last sample, and one that came in the first.
        used = 0
        for before, after in pairwise(samples):
            # Corrections count in both directions: they move time from one group to another.
            used += sum(now - before.used_ns.get(key, 0) for key, now in after.used_ns.items() if key[0] == uuid)
        return max(0.0, used / (samples[-1].now_ns - samples[0].now_ns))

    def since(self, seconds: float) -> list[Sample]:
        """Samples of the last ``seconds``, oldest first."""
        if not self._samples:
            return []
        first = self._samples[-1].now_ns - seconds * 1e9
        return [sample for sample in self._samples if sample.now_ns >= first]
