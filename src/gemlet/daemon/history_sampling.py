"""Makes the moments of the recorded history: what the daemon sees ten times a second, and its status once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.daemon.history_moment import DEVICE_COLUMNS, GROUP_COLUMNS, REASONS
from gemlet.daemon.latency import Counts, difference, quantile
from gemlet.daemon.native import uuid_text

if TYPE_CHECKING:
    from gemlet.daemon.history_moment import Column, Values
    from gemlet.daemon.history_store import Key
    from gemlet.daemon.native import GroupUsage, Snapshot
    from gemlet.daemon.status import DeviceStatus, GroupStatus, Status

Counters = tuple[float, float]  # seconds of device time used; throttled


class Moments:
    """What was counted since the last moment."""

    def __init__(self) -> None:
        self._samples = 0
        self._waits: dict[tuple[bytes, str], dict[str, int]] = {}  # samples that found it waiting, by reason
        self._counters: dict[Key, Counters] = {}
        self._moved: dict[Key, int] = {}
        self._latencies: dict[tuple[bytes, str], Counts] = {}  # as of the last sample
        self._counted: dict[tuple[bytes, str], Counts] = {}  # as of the last moment
        self._at: float | None = None

    def look(self, snapshot: Snapshot) -> None:
        """Notes who waits, and for what."""
        self._samples += 1
        self._latencies = {
            (device.uuid, group.name): dict(group.latencies)
            for device in snapshot.devices
            for group in device.groups
            if group.latencies
        }
        for device in snapshot.devices:
            for group in device.groups:
                if group.programs and (reason := _waits_for(group)):
                    waits = self._waits.setdefault((device.uuid, group.name), {})
                    waits[reason] = waits.get(reason, 0) + 1

    def take(self, status: Status, now: float) -> tuple[dict[Key, Values], dict[Key, Values]]:
        """Values of groups and of devices for the time since the last call; ``now`` in seconds of a steady clock.

        The first call has no interval and gives none. Groups without clients that used nothing are left out.
        """
        seconds = 0.0 if self._at is None else now - self._at
        self._at = now
        before, self._counters = self._counters, {}
        moved, self._moved = self._moved, {}
        waits = {(uuid_text(uuid), name): found for (uuid, name), found in self._waits.items()}
        counted, self._counted = self._counted, self._latencies
        requests = {
            (uuid_text(uuid), name): difference(found, counted.get((uuid, name), {}))
            for (uuid, name), found in self._latencies.items()
        }
        samples = max(self._samples, 1)
        self._waits, self._samples = {}, 0
        groups: dict[Key, Values] = {}
        devices: dict[Key, Values] = {}
        for device in status.devices:
            used = 0.0
            for group in device.groups:
                key = (device.uuid, group.name)
                counters = self._counters[key] = (group.used_s, group.throttled_s)
                then = before.get(key, (0.0, 0.0))
                share, throttled = (max(0.0, a - b) for a, b in zip(counters, then, strict=True))
                used += share
                self._moved[key] = group.moved
                bytes_moved = max(0, group.moved - moved.get(key, group.moved))
                if seconds and (group.programs or share):
                    waited = _beyond(throttled / seconds, {r: n / samples for r, n in waits.get(key, {}).items()})
                    values = _group(group) | {
                        "share": share / seconds,
                        "throttled": throttled / seconds,
                        **_latency(requests.get(key, {}), seconds),
                        "moved": bytes_moved / seconds,
                        **{f"waits {reason}": part for reason, part in waited.items()},
                    }
                    groups[key] = _row(values, GROUP_COLUMNS)
            if seconds:
                devices[device.uuid, ""] = _row(_device(device) | {"share": used / seconds}, DEVICE_COLUMNS)
        return groups, devices


def _beyond(throttled: float, waits: dict[str, float]) -> dict[str, float]:
    """``waits`` without the time in which the group's maximum was what made it wait: it is told apart from them."""
    left = {}
    for reason, part in waits.items():
        cut = min(part, throttled) if reason != "memory" else 0.0
        throttled -= cut
        left[reason] = part - cut
    return left


def _waits_for(group: GroupUsage) -> str | None:
    # While a client's memory is away, the arbiter does not know that it has work.
    if group.awaits_memory:
        return "memory"
    return group.why if group.waiting and group.why in REASONS else None


def _group(group: GroupStatus) -> dict[str, float | None]:
    return {
        "target": group.target,
        "min": group.min,
        "max": group.max,
        "speed": group.speed,
        "clients": float(group.programs),
        "memory": float(group.memory_used),
        "resident": float(max(0, group.memory_used - group.swapped)),
        "swapped": float(group.swapped),
    }


def _latency(counts: Counts, seconds: float) -> dict[str, float | None]:
    return {
        "requests": sum(counts.values()) / seconds,
        "p50": quantile(counts, 0.5),
        "p99": quantile(counts, 0.99),
    }


def _device(device: DeviceStatus) -> dict[str, float | None]:
    return {
        "busy": device.utilization,
        "memory": None if device.memory_used is None else float(device.memory_used),
        "power": device.power,
        "temperature": device.temperature,
    }


def _row(values: dict[str, float | None], columns: tuple[Column, ...]) -> Values:
    return tuple(values.get(column.name, 0.0) for column in columns)
