"""The nouns of gemlet as plain data: no behaviour, no I/O.

A *group* is a named set of processes that shares one time share and one memory limit on a device. Shares are
fractions of device time in 0..1, sizes are bytes, times are seconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

POLICIES = ("fair", "gemini", "fifo")  # one file each in native/arbiter/policies


class Priority(StrEnum):
    """Class of a group: ``latency`` revokes others at once, ``best-effort`` only takes what is left."""

    BEST_EFFORT = "best-effort"
    NORMAL = "normal"
    LATENCY = "latency"


class Workload(StrEnum):
    """What bounds a program's kernels (Orion's classes): the first guess of who may run beside whom under MPS.

    ``alone`` never runs beside another.
    """

    UNKNOWN = "unknown"
    COMPUTE = "compute"
    MEMORY = "memory"
    ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What a group is promised and where it stops.

    min, max: share of device time, 0 <= min <= max <= 1. memory: bytes, None for no limit.
    resident: bytes of it that may be on the device at a time, None for all; the rest is on the host (docs/memory.md).
    weight: how time above the minima is divided. sm: fraction of the multiprocessors.
    users: user names that may join; empty for whoever may reach the daemon (its own user, or the group's creator).
    """

    name: str
    min: float = 0.0
    max: float = 1.0
    memory: int | None = None
    resident: int | None = None
    weight: float = 1.0
    sm: float = 1.0
    priority: Priority = Priority.NORMAL
    workload: Workload = Workload.UNKNOWN
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """What the configuration says of one device; ``uuid`` and ``index`` as in nvidia-smi, one of them is set.

    policy: how its time is shared. capacity: bytes of its memory that programs may use at a time; what
    does not fit waits on the host (docs/memory.md). None: nothing moves, and what does not fit is refused.
    """

    index: int | None = None
    uuid: str | None = None
    policy: str = "fair"
    capacity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One whole configuration, whatever file format it came from.

    host_memory: bytes of the host that swapped device memory may take, None for the default (docs/memory.md).
    """

    groups: tuple[GroupSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    policy: str = "fair"
    host_memory: int | None = None
    source: str | None = None
    warnings: tuple[str, ...] = field(default=())
