"""How the daemon sees `gemlet._native.Server`: the calls it makes and the snapshot it reads.

The server runs its own native thread for sockets, pages and deadlines, so nothing here is on the path of a hand-over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gemlet.decoding import convert
from gemlet.model import DeviceTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

# A process, the bytes that the driver holds for it, and its memory, number of contexts and bytes moved before the
# driver was asked: nothing is booked if these changed, nor while some of its memory is on the host. None for the bytes:
# the driver knows no such process, which only bounds what it claims to hold where that makes others' memory leave.
Held = tuple[int, int | None, tuple[int, int, int] | None]


class Server(Protocol):
    """The part of `gemlet._native.Server` the daemon uses; tests put a fake in its place."""

    def listen(self, path: str, group: str | None = None, mode: int = 0o600) -> None:
        """Accepts clients at ``path``; with ``group``, every client that connects there is in that group."""

    def unlisten(self, path: str) -> bool:
        """Removes a socket; clients that came through it stay. False if there is none at ``path``."""

    def add_device(self, uuid: bytes, index: int, *, policy: str) -> None:
        """Makes a device known; an empty ``policy`` is the server's own."""

    def set_capacity(self, uuid: bytes, bytes: int | None, max_wait: int | None = None) -> None:  # noqa: A002
        """How much of a device its clients may use at a time; for clients that come from now on."""

    def set_host_memory(self, bytes: int) -> None:  # noqa: A002
        """How much of the host swapped memory may take, of all devices together."""

    def set_accounts(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """As of `SubordinateUids.ranges`: programs that come from now on are counted among those of that account."""

    def set_group(self, name: str, **fields: Any) -> None:
        """Creates a group or changes a live one. ``fields``: those of GroupSpec, users as uids, and ``device``: index
        of the only one on which it has its minimum, None for every one. Raises ValueError.

        Clients of users who may not be in it any more leave it.
        """

    def bind_group(self, name: str, devices: list[bytes]) -> bool:
        """Lets programs of a group use only the devices of these UUIDs; of none: every one. False without the group."""

    def maker(self, name: str) -> int | None:
        """The uid whose client made a group that `set_group` was not called for; None if there is no such group."""

    def remove_group(self, name: str) -> bool:
        """False while it has clients."""

    def start(self) -> None:
        """Starts the native thread."""

    def stop(self) -> None:
        """Lets every client run on unmanaged and closes the sockets."""

    def hand_over(self) -> dict[str, Any]:
        """Stops the native thread, and says what a successor needs; `start` goes on as if nothing had happened.

        ``listeners``: ``path``, ``fd``. ``ledgers``: ``device`` (uuid), ``index``, ``context_estimate`` in bytes,
        ``group``, ``number``, ``fd``, and ``slots``, of which each has ``index``, ``pid``, ``uid``, ``started`` (ticks
        since boot), ``fd`` (pidfd), ``who``, ``administrator``, ``contexts``, and in bytes ``used``, ``untracked``,
        ``fixed``, ``movable`` and ``mapped``.
        ``callers``, clients without a device: ``fd``,
        ``fixed``, ``group``, ``strict``, ``version``. The descriptors stay the server's.
        """

    def knows_members(self) -> bool:
        """Whether what members of a daemon that was killed hold is known by now; two seconds after `start`, it is."""

    def leave(self) -> None:
        """After `hand_over`, once a successor runs: ends without a word to clients but that connections are closed."""

    def inherit_listener(self, path: str, fd: int) -> None:
        """`listen` at ``path`` uses this socket. Before `start`, as the next two, which come after it."""

    def inherit_ledger(self, image: dict[str, Any]) -> None:
        """One of `hand_over`'s: a process that joins finds its slot, and until then it counts.

        With a negative ``fd`` it is one of `members`, of a daemon that was killed: each slot has what it had then, and
        the index that it had then in ``before``; ``ended`` are the indices of those that have ended since.
        """

    def inherit_caller(self, caller: dict[str, Any]) -> None:
        """One of `hand_over`'s."""

    def govern(self) -> None:
        """The one before has left: programs take more by ledgers that were inherited from it. After `start`."""

    def members(self) -> list[dict[str, Any]]:
        """``ledgers`` of `hand_over` that have slots, as of now."""

    def snapshot(self, listed: bool = True) -> dict[str, Any]:
        """Usage now; see `Snapshot`. ``listed``: with each client and each program that is not governed."""

    def groups_by_pid(self) -> dict[int, str]:
        """The group of each process that uses a device, or did under the daemon before and lives; and the one that
        was asked for by each that was refused and says that it keeps to limits.
        """

    def set_memory_of_processes(self, uuid: bytes, processes: list[Held]) -> None:
        """What the driver holds for each process in all; what its ledger does not explain is booked to its group."""

    def eventfd(self) -> int:
        """Readable when `take_events` has something."""

    def clock(self) -> int:
        """Nanoseconds of the machine's clock, which CLOCK_MONOTONIC is not in a time namespace."""

    def trace(self, since: int, most: int) -> tuple[list[tuple[int, int, str, int]], int, bool]:
        """Steps numbered ``since`` and later, ``most`` of them, the number after the last of them, and whether some of
        those asked for are forgotten; see `tracing`.
        """

    def trace_at(self, at: int) -> tuple[int, bool]:
        """The number of the first step since ``at`` of `clock`, and whether earlier ones are forgotten."""

    def traced(self) -> list[dict[str, Any]]:
        """Whose steps there are; see `tracing.TracedClient`."""

    def take_events(self) -> list[dict[str, Any]]:
        """What happened since the last call; see `events.Event`."""


class MovableUsage(msgspec.Struct, frozen=True, kw_only=True):
    """``bytes`` can move, ``resident`` of them are on the device; moved and dropped count since it began. ``here``: the
    client may run with them; ``queued``: it has work, and there is no room for them yet.

    ``pinned``: bytes of the host's memory that are ready for what moves.
    """

    bytes: int
    resident: int
    here: bool
    reason: str
    handover_ns: int = 0
    moved_out: int = 0
    moved_in: int = 0
    dropped: int = 0
    pinned: int = 0
    queued: bool = False

    @property
    def moved(self) -> int:
        """Bytes that left the device or came back so far, as the server adds them up: a program may write any number,
        and what the server is told of one is told of all.
        """
        return (self.moved_out + self.moved_in + self.dropped) % 2**64


class ClientUsage(msgspec.Struct, frozen=True, kw_only=True):
    id: int = 0
    pid: int = 0
    uid: int = 0
    command: str = ""
    state: str = ""
    memory: int = 0
    untracked: int = 0
    launches: int = 0
    work_ns: int = 0
    samples: int = 0
    busy_samples: int = 0
    awaited_samples: int = 0
    contexts: int = 0
    mps: bool = False
    since_ns: int = 0
    movable: MovableUsage | None = None


class AwaitedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A process that used the device under the daemon before, and has not come yet; ``memory`` without contexts."""

    pid: int
    memory: int
    contexts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage(DeviceTerms):
    """One group on one device: the terms in force there, and what it uses.

    speed: of its programs lately, relative to their speed alone; None while unknown. why: "shares", or why it does not
    share the device with others (`Why` in native/arbiter/arbiter.hpp). latencies: of requests of the class latency, the
    bounds that were needed and how often (native/server/latencies.hpp).

    programs, expected: how many clients it has and awaits. launches, work_ns, moved (bytes): of all clients that it
    ever had; these never fall. swapped: bytes on the host now. beside_mps: pids of clients that do not say that they
    are under MPS, where it has a part of the multiprocessors. clients, awaited: each of them, where they are listed.
    """

    target: float = 0.0
    speed: float | None = None
    why: str = "shares"
    used_ns: int = 0
    throttled_ns: int = 0
    memory_used: int = 0
    untracked: int = 0
    waiting: int = 0
    holding: int = 0
    reason: str = ""
    made_by_client: bool = False
    latencies: tuple[tuple[int, int], ...] = ()
    latency_sum_ns: int = 0
    programs: int = 0
    expected: int = 0
    launches: int = 0
    work_ns: int = 0
    moved: int = 0
    swapped: int = 0
    awaits_memory: bool = False
    memory_reason: str = ""
    beside_mps: tuple[int, ...] = ()
    clients: tuple[ClientUsage, ...] = ()
    awaited: tuple[AwaitedUsage, ...] = ()

    @property
    def explanation(self) -> str:
        """Why it runs or waits, for people: ``reason``, or where memory is away, which the arbiter knows nothing of."""
        return self.memory_reason or self.reason


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True):
    uuid: bytes
    index: int = 0
    policy: str = ""
    ignored: int = 0
    capacity: int | None = None
    held: int = 0
    host_promised: int = 0
    context_estimate: int = 0
    groups: tuple[GroupUsage, ...] = ()


class UnmanagedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the server has seen and does not govern. ``strict``: None if it did not come to say so.

    ``joined``: it is governed as soon as it uses a device.
    """

    pid: int
    uid: int
    command: str
    group: str
    why: str
    strict: bool | None
    since_ns: int
    joined: bool = False


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What `Server.snapshot` returns. Times are nanoseconds of CLOCK_MONOTONIC, sizes bytes. ungoverned: how many there
    are, also where ``unmanaged`` does not list them.
    """

    devices: tuple[DeviceUsage, ...] = ()
    now_ns: int = 0
    denied: int = 0
    ungoverned: int = 0
    unmanaged: tuple[UnmanagedUsage, ...] = ()

    def clients_by_group(self) -> dict[str, int]:
        """How many clients each group has, or awaits, over all devices."""
        count: dict[str, int] = {}
        for device in self.devices:
            for group in device.groups:
                count[group.name] = count.get(group.name, 0) + group.programs + group.expected
        return count


def read_snapshot(server: Server, *, listed: bool) -> Snapshot:
    """The server's usage as structs. Raises msgspec.ValidationError if the two sides disagree on the shape."""
    return convert(server.snapshot(listed), Snapshot, builtin_types=(bytes,))


def uuid_text(uuid: bytes) -> str:
    """A device UUID as nvidia-smi prints it."""
    digits = uuid.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
