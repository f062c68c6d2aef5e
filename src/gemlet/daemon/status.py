"""The status document: what `gemlet status -o json`, `gemlet top` and the metrics read.

Its shape is public (docs/commands.md) and carries a number: fields may be added within a schema, not changed.
Sizes are bytes, shares 0..1 of one device's time, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon import protocol
from gemlet.daemon.audit import Outsider, named
from gemlet.daemon.events import Event
from gemlet.daemon.latency import Latency  # noqa: TC001  msgspec reads the annotations
from gemlet.daemon.mps_state import MpsStatus, with_groups
from gemlet.daemon.native import (
    ClientUsage,
    DeviceUsage,
    GroupUsage,
    MovableUsage,
    Snapshot,
    UnmanagedUsage,
    uuid_text,
)
from gemlet.daemon.totals import LabelStatus
from gemlet.model import GroupSpec, TimeTerms, terms

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from gemlet.daemon.group_entry import Entry
    from gemlet.daemon.programs import Key, Programs
    from gemlet.daemon.recent_usage import RecentUsage
    from gemlet.daemon.totals import Totals
    from gemlet.devices.device import DeviceInfo


UNMANAGED_STATES = {True: "refused", False: "unmanaged", None: "unknown"}  # by whether it is strict


class SwapStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one client that can move: ``resident`` is on the device, ``swapped`` on the host.

    moved_out, moved_in: bytes copied so far; dropped: bytes that left the device without a copy; handover_s: how long
    it took to bring it in last time, None if it never had to. ``pinned``: bytes of the host's memory that are ready for
    what moves. ``reason``: why it is not all there, for people.
    """

    resident: int
    swapped: int
    moved_out: int
    moved_in: int
    dropped: int
    pinned: int = 0
    handover_s: float | None
    reason: str


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one device. ``state``: as the arbiter sees it: runs, waits, stops, idle. ``mps``: under MPS.

    ``command`` is the kernel's name for it, ``name`` what people call it; both are for people. ``started``: seconds
    since 1970. ``memory_used`` is what counts against the group's limit, ``unledgered`` included; ``memory`` without.
    """

    pid: int
    uid: int
    command: str
    state: str
    memory: int
    unledgered: int
    launches: int
    contexts: int
    seconds: float
    swap: SwapStatus | None = None
    mps: bool = False
    work_s: float = 0.0
    samples: int = 0
    busy_samples: int = 0
    awaited_samples: int = 0
    name: str = ""
    user: str = ""
    started: float | None = None
    container: str = ""
    memory_used: int = 0

    @property
    def called(self) -> str:
        """What to call it on the screen."""
        return self.name or self.command


class UnmanagedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A program that has come to the daemon and is not governed. ``seconds``: since when.

    ``group``: which it asked for; ``strict``: it waits and fails instead of running without limits. Both are empty or
    None for a program that was turned away before it could say so. ``state``: joined (governed as soon as it uses a
    device), unmanaged (runs without limits), refused (strict), unknown.
    """

    pid: int
    uid: int
    command: str
    group: str
    strict: bool | None
    state: str
    seconds: float
    why: str
    name: str = ""
    user: str = ""
    started: float | None = None
    container: str = ""

    @property
    def called(self) -> str:
        """What to call it on the screen."""
        return self.name or self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus(TimeTerms):
    """One group on one device. ``share``: measured over the last 1 s, 10 s, 60 s; ``target``: the share that it should
    have now.

    sm_in_force: the fraction of the multiprocessors holds while every client is under MPS, else they take turns.
    throttled_s: how long it had work and its maximum made it wait, since it exists. speed: of its programs lately,
    relative to their speed alone; None while unknown. why: "shares", or why it takes turns. launches: submissions of
    its clients since it exists, of those that have gone, too. programs: how many clients it has, also where ``clients``
    does not list them; swapped: bytes of theirs on the host; moved: bytes that they moved so far. latency: of its
    requests, if it is of that class and had any.
    """

    origin: str
    share: dict[str, float | None]
    target: float
    used_s: float
    memory_limit: int | None
    memory_used: int
    unledgered: int
    reason: str
    clients: tuple[ClientStatus, ...]
    resident_limit: int | None = None
    sm_in_force: bool = True
    throttled_s: float = 0.0
    speed: float | None = None
    why: str = "shares"
    launches: int = 0
    latency: Latency | None = None
    programs: int = 0
    swapped: int = 0
    moved: int = 0


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One device. ``share``: what all groups together used; utilization, memory, power (watts), temperature (degrees
    Celsius) and clock (of the multiprocessors, MHz) are the driver's own figures. ``used_s``: device time that all
    groups used since the daemon started, and ``busy_s`` how long the driver found the device busy."""

    index: int
    uuid: str
    name: str
    policy: str
    memory_total: int | None
    memory_used: int | None
    utilization: float | None
    share: dict[str, float]
    groups: tuple[GroupStatus, ...]
    capacity: int | None = None
    power: float | None = None
    temperature: float | None = None
    clock: int | None = None
    used_s: float = 0.0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits(GroupSpec):
    """One group as it is promised, on any device. ``device``: index its minimum is reserved on, None for every one."""

    origin: str
    owner: int | None
    device: int | None
    clients: int


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon itself. Since it started: ``denied`` connections and ``ignored`` messages that made no sense.

    ``config_error``: why the file as it is now is not in force, None if it is. ``history``: why none is recorded, None
    if it is. ``state_error``: why a daemon that is started after a kill would not know the groups and programs of now,
    None if it would.
    """

    pid: int
    version: str
    kind: str
    directory: str
    config: str | None
    policy: str
    uptime_s: float
    denied: int
    ignored: int
    config_error: str | None = None
    history: str | None = None
    state_error: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document. ``daemon``: None without one; ``problem`` is then why less is known, and None otherwise.
    ``ungoverned``: how many ``unmanaged`` there are.
    """

    schema: int = protocol.STATUS_SCHEMA
    simulated: bool
    daemon: DaemonStatus | None
    devices: tuple[DeviceStatus, ...]
    groups: tuple[GroupLimits, ...]
    events: tuple[Event, ...]
    mps: MpsStatus = MpsStatus()
    outside: tuple[Outsider, ...] = ()
    unmanaged: tuple[UnmanagedStatus, ...] = ()
    ungoverned: int = 0
    labels: tuple[LabelStatus, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What people call processes, and users by uid."""

    programs: Programs
    user: Callable[[int], str]


AT_ONCE = 256  # groups and programs that are described in one step


def build(
    snapshot: Snapshot,
    *,
    daemon: DaemonStatus,
    simulated: bool,
    inventory: dict[bytes, DeviceInfo],
    entries: dict[str, Entry],
    recent: RecentUsage,
    events: list[Event],
    mps: MpsStatus,
    names: Names,
    totals: Totals,
    outside: Sequence[Outsider] = (),
) -> Generator[None, None, Status]:
    """Puts together what the server, the driver, the group book and the samples know, in steps of some milliseconds:
    there may be thousands of programs, of users who are not those that wait for an answer.
    """
    busy = snapshot.clients_by_group()
    groups_by_pid = {c.pid: group.name for device in snapshot.devices for group in device.groups for c in group.clients}
    served = frozenset(client.pid for client in mps.clients())
    devices = []
    for device in sorted(snapshot.devices, key=lambda device: device.index):
        groups = yield from _groups(device, entries, recent, snapshot.now_ns, names=names, served=served)
        devices.append(_device(device, inventory.get(device.uuid), recent, groups, used=totals.device(device.uuid)))
    unmanaged = []
    for number, usage in enumerate(snapshot.unmanaged, 1):
        unmanaged.append(_unmanaged(usage, snapshot.now_ns, names))
        if number % AT_ONCE == 0:
            yield
    return Status(
        simulated=simulated,
        daemon=daemon,
        devices=tuple(devices),
        groups=tuple(_limits(entry, busy.get(name, 0)) for name, entry in sorted(entries.items())),
        events=tuple(events),
        outside=tuple(named(who, names.programs.find(who.key)) for who in outside),
        unmanaged=tuple(unmanaged),
        ungoverned=snapshot.ungoverned,
        mps=msgspec.structs.replace(mps, servers=with_groups(mps.servers, groups_by_pid)),
        labels=totals.labels(),
    )


def _groups(
    device: DeviceUsage,
    entries: dict[str, Entry],
    recent: RecentUsage,
    now_ns: int,
    *,
    names: Names,
    served: frozenset[int],
) -> Generator[None, None, tuple[GroupStatus, ...]]:
    groups, done = [], 0
    for usage in device.groups:
        clients = []
        for client in usage.clients:
            clients.append(_client(client, now_ns, names=names, served=served))
            done += 1
            if done % AT_ONCE == 0:
                yield
        groups.append(_group(usage, device.uuid, entries, recent, tuple(clients), served=served))
        done += 1
        if done % AT_ONCE == 0:
            yield
    return tuple(groups)


def _device(
    usage: DeviceUsage,
    known: DeviceInfo | None,
    recent: RecentUsage,
    groups: tuple[GroupStatus, ...],
    *,
    used: tuple[float, float],
) -> DeviceStatus:
    return DeviceStatus(
        index=usage.index,
        uuid=uuid_text(usage.uuid),
        name=known.name if known else "",
        policy=usage.policy,
        memory_total=known.memory_total if known else None,
        memory_used=known.memory_used if known else None,
        utilization=known.utilization if known else None,
        share=recent.device_shares(usage.uuid),
        groups=groups,
        capacity=usage.capacity,
        power=known.power if known else None,
        temperature=known.temperature if known else None,
        clock=known.clock if known else None,
        used_s=used[0],
        busy_s=used[1],
    )


def _group(
    usage: GroupUsage,
    uuid: bytes,
    entries: dict[str, Entry],
    recent: RecentUsage,
    clients: tuple[ClientStatus, ...],
    *,
    served: frozenset[int],
) -> GroupStatus:
    entry = entries.get(usage.name)
    used = recent.total((uuid, usage.name), usage)
    return GroupStatus(
        **terms(usage, TimeTerms),
        origin=entry.origin if entry else "client",
        share=recent.shares((uuid, usage.name)),
        target=usage.target,
        used_s=used.ns / 1e9,
        launches=used.launches,
        latency=recent.latency((uuid, usage.name), usage),
        throttled_s=usage.throttled_ns / 1e9,
        speed=usage.speed,
        why=usage.why,
        memory_limit=usage.memory,
        memory_used=usage.memory_used,
        unledgered=usage.untracked,
        reason=usage.explanation,
        clients=clients,
        resident_limit=usage.resident,
        sm_in_force=served.issuperset(usage.beside_mps),
        programs=usage.programs,
        swapped=usage.swapped,
        moved=usage.moved,
    )


def program_keys(snapshot: Snapshot, outside: Sequence[Outsider] = ()) -> set[Key]:
    """The programs that a status names."""
    clients = {_key(client) for device in snapshot.devices for group in device.groups for client in group.clients}
    return clients | {_key(who) for who in snapshot.unmanaged} | {who.key for who in outside}


def uids(snapshot: Snapshot) -> set[int]:
    """The users that a status names."""
    clients = {client.uid for device in snapshot.devices for group in device.groups for client in group.clients}
    return clients | {who.uid for who in snapshot.unmanaged}


def _key(usage: ClientUsage | UnmanagedUsage) -> Key:
    return usage.pid, usage.id if isinstance(usage, ClientUsage) else -usage.since_ns


def _client(usage: ClientUsage, now_ns: int, *, names: Names, served: frozenset[int]) -> ClientStatus:
    program = names.programs.find(_key(usage))
    return ClientStatus(
        pid=usage.pid,
        uid=usage.uid,
        command=usage.command,
        state=usage.state,
        memory=usage.memory,
        unledgered=usage.untracked,
        launches=usage.launches,
        work_s=usage.work_ns / 1e9,
        samples=usage.samples,
        busy_samples=usage.busy_samples,
        awaited_samples=usage.awaited_samples,
        contexts=usage.contexts,
        mps=usage.mps or usage.pid in served,  # its hook says so, or the control daemon
        seconds=max(0, now_ns - usage.since_ns) / 1e9,
        swap=_swap(usage.movable) if usage.movable else None,
        name=program.name,
        user=names.user(usage.uid),
        started=program.started,
        container=program.container,
        memory_used=usage.memory + usage.untracked,
    )


def _unmanaged(usage: UnmanagedUsage, now_ns: int, names: Names) -> UnmanagedStatus:
    program = names.programs.find(_key(usage))
    return UnmanagedStatus(
        pid=usage.pid,
        uid=usage.uid,
        command=usage.command,
        group=usage.group,
        strict=usage.strict,
        state="joined" if usage.joined else UNMANAGED_STATES[usage.strict],
        seconds=max(0, now_ns - usage.since_ns) / 1e9,
        why=usage.why,
        name=program.name,
        user=names.user(usage.uid),
        started=program.started,
        container=program.container,
    )


def _swap(usage: MovableUsage) -> SwapStatus:
    return SwapStatus(
        resident=usage.resident,
        swapped=max(0, usage.bytes - usage.resident),
        moved_out=usage.moved_out,
        moved_in=usage.moved_in,
        dropped=usage.dropped,
        pinned=usage.pinned,
        handover_s=usage.handover_ns / 1e9 or None,
        reason=usage.reason,
    )


def _limits(entry: Entry, clients: int) -> GroupLimits:
    return GroupLimits(
        **terms(entry.spec, GroupSpec), origin=entry.origin, owner=entry.owner, device=entry.device, clients=clients
    )
