"""The nouns of gemlet as plain data: no behaviour, no I/O.

A *group* is a named set of processes that shares one time share and one memory limit on a device. Shares are
fractions of device time in 0..1, sizes are bytes, times are seconds unless a name says otherwise.

`TimeTerms`, `DeviceTerms` and `GroupSpec` are the one table of a group's fields: everything else that knows of them is
made from it (config/group_fields.py lists what).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

AUDIT_POLICIES = ("say", "stop", "kill")
LONGEST_BACK_S = 90 * 86400  # as far as the recorded history reaches
POLICIES = ("fair", "gemini", "fifo")  # one file each in native/arbiter/policies

Value = TypeVar("Value")


class Priority(StrEnum):
    """Class of a group: ``latency`` revokes others at once, ``best-effort`` only takes what is left."""

    BEST_EFFORT = "best-effort"
    NORMAL = "normal"
    LATENCY = "latency"


class Workload(StrEnum):
    """What bounds a program's kernels (Orion's classes): the first guess of which groups may co-run under MPS.

    ``alone`` never co-runs.
    """

    UNKNOWN = "unknown"
    COMPUTE = "compute"
    MEMORY = "memory"
    ALONE = "alone"


class Gang(StrEnum):
    """Whether a group's clients on several devices get their turns at the same time.

    ``auto``: if they are seen to use these devices together.
    """

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Kind(StrEnum):
    """What the values of a field are, and in which unit."""

    SHARE = "share"  # of device time, 0..1
    FRACTION = "fraction"  # of the multiprocessors, above 0 and at most 1
    NUMBER = "number"  # a positive factor
    SLOWDOWN = "slowdown"  # a factor of 1 or more
    SIZE = "size"  # bytes; None: no limit
    CHOICE = "choice"  # one value of an enumeration
    NAMES = "names"  # user names


@dataclass(repr=False, eq=False, kw_only=True)  # no more than it needs: `gemlet run` waits for this module
class Column:
    """What the table says of one field, beside its name, its type and its default.

    help: one line for `--help`. phrase: how a sentence says it, ``{}`` is the value. verbs: who may change it: ``run``,
    the person who starts a program in the group; ``set``, its owner. live: whether a change reaches programs that run.
    """

    kind: Kind
    help: str
    phrase: str
    verbs: tuple[str, ...] = ("run", "set")
    live: bool = True


def column(default: Value, kind: Kind, help: str, phrase: str, **more: Any) -> Value:  # noqa: A002
    """One field of the table."""
    return field(default=default, metadata={"column": Column(kind=kind, help=help, phrase=phrase, **more)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerms:
    """What a group is promised of a device's time, and where it stops: what the arbiter knows of it."""

    name: str
    min: float = column(0.0, Kind.SHARE, "Share of device time that is guaranteed: 0.3 or 30%", "{} guaranteed")
    max: float = column(1.0, Kind.SHARE, "Share of device time that is never passed, even alone", "up to {}")
    weight: float = column(
        1.0, Kind.NUMBER, "Part of the time above the minima: 2 is twice that of others", "weight {}", verbs=("set",)
    )
    sm: float = column(
        1.0,
        Kind.FRACTION,
        "Fraction of the multiprocessors, under MPS: 0.3 or 30%",
        "{} of the multiprocessors",
        live=False,  # it is fixed when a program makes its context
    )
    priority: Priority = column(Priority.NORMAL, Kind.CHOICE, "Class of the group", "priority {}")
    workload: Workload = column(
        Workload.UNKNOWN, Kind.CHOICE, "What bounds its kernels: a first guess of its co-runners", "workload {}"
    )
    slowdown: float = column(
        1.1,
        Kind.SLOWDOWN,
        "Class latency: how much longer than alone a request may take: 1.1 is a tenth",
        "requests at most {} times as long as alone",
    )
    gang: Gang = column(
        Gang.AUTO, Kind.CHOICE, "Turns at the same time on all its devices; auto: if it uses them together", "gang {}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTerms(TimeTerms):
    """What a group is promised of one device, time and memory: what the native server enforces."""

    memory: int | None = column(None, Kind.SIZE, "Limit of device memory, such as 8GiB", "{} of memory")
    resident: int | None = column(
        None,
        Kind.SIZE,
        "Part of it on the device at a time; the rest is on the host",
        "{} of it on the device at a time",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec(DeviceTerms):
    """The whole of what a group is promised."""

    users: tuple[str, ...] = column(
        (), Kind.NAMES, "Users who may join; empty: everyone who may reach the daemon", "users {}"
    )


@dataclass(repr=False, eq=False, kw_only=True)
class GroupField:
    """One row of the table. ``choices``: the enumeration of a CHOICE. ``time``: whether it is one of the TimeTerms."""

    name: str
    default: Any
    column: Column
    choices: type[StrEnum] | None
    time: bool

    @property
    def kind(self) -> Kind:
        return self.column.kind


def _rows() -> dict[str, GroupField]:
    time = {row.name for row in dataclasses.fields(TimeTerms)}
    return {
        row.name: GroupField(
            name=row.name,
            default=row.default,
            column=row.metadata["column"],
            choices=type(row.default) if isinstance(row.default, StrEnum) else None,
            time=row.name in time,
        )
        for row in dataclasses.fields(GroupSpec)
        if "column" in row.metadata
    }


GROUP_FIELDS: dict[str, GroupField] = _rows()  # by name; the group's own name is not among them


def terms(of: TimeTerms, kind: type[TimeTerms]) -> dict[str, Any]:
    """The fields of ``of`` that ``kind`` has too, by name: to make one kind of terms from another."""
    return {row.name: getattr(of, row.name) for row in dataclasses.fields(kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTerms:
    """Fields of groups, as in GroupSpec; None: nothing is said."""

    min: float | None = None
    max: float | None = None
    weight: float | None = None
    memory: int | None = None
    priority: Priority | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpec(UserTerms):
    """What the groups that one user makes may have: on one device all together ``min`` and ``weight``, all together
    ``memory``, each ``max`` and ``priority``. ``name``: of a user, a uid, or "*" for everybody else. ``groups``: how
    many. ``defaults``: of a group of which nothing is said.
    """

    name: str
    groups: int | None = None
    defaults: UserTerms = UserTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """What the daemon does about programs that use a device outside gemlet, once they have for ``after`` seconds.

    ``allow``: users whose programs are only shown; root's always are.
    """

    policy: str = "say"
    after: float = 10.0
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """What the configuration says of one device; ``uuid`` and ``index`` as in nvidia-smi, one of them is set.

    policy: how its time is shared. capacity: bytes of its memory that programs may use at a time; what
    does not fit waits on the host (docs/memory.md). None: nothing moves, and what does not fit is refused.
    max_wait: seconds that a program may have to wait until another one makes room.
    """

    index: int | None = None
    uuid: str | None = None
    policy: str = "fair"
    capacity: int | None = None
    max_wait: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One whole configuration, whatever file format it came from.

    host_memory: bytes of the host that swapped device memory may take, None for the default (docs/memory.md).
    metrics_port: loopback port of the metrics, None for none. web: loopback address of the page, None for none.
    """

    groups: tuple[GroupSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    users: tuple[UserSpec, ...] = ()
    audit: AuditSpec = AuditSpec()
    metrics_port: int | None = None
    web: str | None = None
    policy: str = "fair"
    host_memory: int | None = None
    source: str | None = None
    warnings: tuple[str, ...] = field(default=())
