"""Two minutes of usage samples at up to 10 Hz: from them come measured shares, for status, top and metrics.

The server charges device time to a group when a grant ends or is sampled, so a share is a difference of two counters.
It corrects what it charged when a drain turns out shorter or longer than was thought, so a counter may fall a little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.daemon.native import Snapshot

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


class History:
    """The ring of samples."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=int(KEPT_SECONDS / SAMPLE_SECONDS))

    def add(self, snapshot: Snapshot) -> None:
        """Appends one sample."""
        used: dict[Key, int] = {}
        memory: dict[Key, int] = {}
        for device in snapshot.devices:
            for group in device.groups:
                used[device.uuid, group.name] = group.used_ns
                memory[device.uuid, group.name] = group.memory_used
        self._samples.append(Sample(snapshot.now_ns, used, memory))

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
