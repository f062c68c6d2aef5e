"""Native parts of the daemon. Times are integer nanoseconds of whatever clock the caller keeps."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

NEVER: int
ENUMERATIONS: dict[str, tuple[str, ...]]
LATENCY_BOUNDS_NS: tuple[int, ...]  # of GroupUsage.latencies; one more stands for what took longer
"""The names of native enumerators, in the order of their values, by enumeration."""

def can_keep_in_place() -> bool:
    """Whether no program can take away or move memory that it shares with a server of this process, at which the server
    would wait for it. Raises RuntimeError if no memory can be shared."""

def close_apart(socket: int) -> None:
    """Closes a connected Unix socket, whatever is unread there, without waiting for anything."""

def refuse_files(socket: int) -> bool:
    """Has the kernel refuse descriptors that are sent to it, and to those accepted from it; False before Linux 6.16."""

_Action = tuple[Literal["grant", "update", "revoke", "park", "unpark"], int, int, int, int, int, int, int, bool, bool]
"""(kind, client, deadline, window, idle, idle_most, poll, submissions, shared, raise).

All but the first two are meant for grant, update and revoke only.
"""

class Arbiter:
    """Decides who holds the token of one device; native/arbiter/arbiter.hpp describes the events and actions.

    ``parameters`` are the fields of its ``Parameters`` by name. Raises ValueError for an unknown policy or parameter.
    """

    def __init__(self, policy: str, **parameters: float) -> None: ...
    def set_group(self, name: str, now: int, **fields: Any) -> int:
        """Creates the group or changes the live one of that name; its id.

        ``fields`` are those of model.TimeTerms, by name. Raises ValueError for any other and for senseless shares.
        """
    def remove_group(self, group: int, now: int) -> None:
        """Raises ValueError while the group has clients."""
    def add_client(self, client: int, group: int, now: int, *, mps: bool = False) -> None: ...
    def remove_client(self, client: int, now: int) -> None: ...
    def request(self, client: int, now: int) -> None: ...
    def took(self, client: int, now: int) -> None: ...
    def stopped(
        self,
        client: int,
        reason: Literal["deadline", "idle", "revoked", "exit"],
        tail: int,
        now: int,
        *,
        unused: bool = False,
    ) -> None:
        """``unused``: by its own account it submitted nothing in this turn."""
    def drained(self, client: int, at: int, now: int, *, earlier: bool = False) -> None:
        """``earlier``: the client has stopped again since, and of that nothing is known."""
    def progress(
        self, client: int, work: int, launches: int = 0, samples: int = 0, busy: int = 0, awaited: int = 0
    ) -> None:
        """What the client says of itself since it was added: work completed in ns, submissions, looks at queues."""
    def next_event(self) -> int: ...
    def tick(self, now: int) -> None: ...
    def take_actions(self) -> list[_Action]: ...
    def usage(self, now: int) -> list[dict[str, Any]]:
        """A row for each group: ``id``, the fields of model.TimeTerms, and

        target: share the policy aims at now, given which groups want; 0 while the group does not want.
        used: device time charged since the group exists. throttled: how long it waited because of its maximum.
        clients, waiting, holding: how many. reason: why it waits or runs, for people.
        speed: lately, relative to alone; None while unknown. exclusive: one of its clients takes turns; why: why.
        """
    @property
    def ignored(self) -> int:
        """Events so far that made no sense."""

class Gangs:
    """Decides for all devices of a host at once when gangs run; native/arbiter/gangs.hpp says how.

    ``parameters`` are those of Arbiter.
    """

    def __init__(self, **parameters: float) -> None: ...
    def add(self, device: Arbiter) -> None: ...
    def remove(self, device: Arbiter) -> None: ...
    def tie(self, group: str, tied: bool = True) -> None:
        """Clients of the group were seen to use several devices together."""
    def settle(self, now: int) -> None:
        """After every event on any device, and at ``next_event``; afterwards the devices have actions."""
    def next_event(self) -> int: ...
    def is_gang(self, group: str) -> bool: ...

def timetable(
    wishes: Sequence[tuple[Sequence[int], float, float, bool]], free_from: Sequence[int], cycle: int, shortest: int
) -> list[tuple[int, int, int]]:
    """Slots (wish, begin, end) of a cycle; native/arbiter/timetable.hpp says how.

    A wish: devices, share of the cycle, the part of it that comes before what others wish beyond theirs, and whether
    it may have what nobody else wants.
    """

class _ResidencyUsage(TypedDict):
    client: int
    movable: int
    mapped: int
    allowed: int
    resident: bool
    queued: bool
    host: int
    """The most bytes of it that may have to be on the host."""
    epoch_end: int
    last_handover: int
    reason: str

class Residency:
    """Decides whose memory is on one device; native/arbiter/residency/residency.hpp describes events and orders.

    ``capacity``, ``host`` and a group's ``resident`` are bytes, None for no limit.
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        host: int | None = None,
        overhead: float = 0.02,
        epoch_min: int = ...,
        max_wait: int = ...,
        idle: int = ...,
    ) -> None: ...
    def set_capacity(self, bytes: int | None, now: int) -> None: ...  # noqa: A002
    def set_group(self, group: int, resident: int | None, share: float, now: int, pinned: bool = False) -> None: ...
    def add(self, client: int, group: int, now: int) -> None: ...
    def remove(self, client: int, now: int) -> None: ...
    def leave(self, client: int, now: int) -> None: ...
    def admit(self, client: int, bytes: int, now: int) -> Literal["", "capacity", "resident", "host"]:  # noqa: A002
        """Why the client may not have as many bytes; "" if it may."""
    def adopt(self, client: int, bytes: int, mapped: int, now: int) -> None: ...  # noqa: A002
    def expect(self, client: int, group: int, fixed: int, movable: int, mapped: int, now: int) -> None: ...
    def come_back(self, before: int, client: int, group: int, now: int) -> None: ...
    def set_fixed(self, client: int, bytes: int, now: int) -> None: ...  # noqa: A002
    def report(self, client: int, mapped: int, seen: int, complete: bool, now: int) -> None: ...
    def request(self, client: int, now: int) -> None: ...
    def idle(self, client: int, now: int) -> None: ...
    def resident(self, client: int) -> bool: ...
    def fits_fixed(self, client: int, bytes: int) -> bool: ...  # noqa: A002
    def fits_if_it_stays(self, client: int, bytes: int) -> bool: ...  # noqa: A002
    def within(self, client: int) -> bool: ...
    def held(self) -> int: ...
    def host_promised(self) -> int: ...
    def next_event(self) -> int: ...
    def tick(self, now: int) -> None: ...
    def take_orders(self) -> list[tuple[int, int, int]]:
        """(client, bytes it may have on the device, number of the order)"""
    def usage(self, now: int) -> list[_ResidencyUsage]: ...

class GeminiPredictor:
    """The published burst predictor (Gemini), on a clock given by the caller."""

    def __init__(
        self, merge_threshold: int, *, keep: int = 3_000_000_000, mode: Literal["p90", "max"] = "p90"
    ) -> None: ...
    def record_start(self, now: int) -> None: ...
    def record_stop(self, now: int) -> None: ...
    def interrupt(self) -> None: ...
    def reset(self) -> None: ...
    def predict_plain(self, now: int) -> int: ...
    def predict_merged(self, now: int) -> int: ...

class Server:
    """Sockets, pages and deadlines in real time, in a thread of its own; native/server/server.hpp describes it.

    ``parameters``: fields of the arbiter's ``Parameters``, and lead, trace, connections, uses, host_memory,
    epoch_overhead, epoch_min, max_wait, claim_grace, refuse_files. Raises ValueError for an unknown policy or
    parameter.
    """

    def __init__(self, policy: str = "fair", **parameters: Any) -> None: ...
    def listen(self, path: str, group: str | None = None, mode: int = 0o600) -> None: ...
    def unlisten(self, path: str) -> bool: ...
    def add_device(self, uuid: bytes, index: int, *, policy: str = "", context_estimate: int = 0) -> None: ...
    def set_capacity(self, uuid: bytes, bytes: int | None, max_wait: int | None = None) -> None: ...  # noqa: A002
    def set_host_memory(self, bytes: int) -> None: ...  # noqa: A002
    def set_accounts(self, ranges: Sequence[tuple[int, int, int]]) -> None: ...
    def set_group(self, name: str, **fields: Any) -> None:
        """Creates a group or changes a live one.

        ``fields``: those of model.GroupSpec by name, users as uids, and ``device``: index of the only one on which it
        has its minimum, None for every one. Raises ValueError, and TypeError for a value that
        is of another type.
        """
    def bind_group(self, name: str, devices: list[bytes]) -> bool:
        """Lets programs of a group use only the devices of these UUIDs; of none: every one. False without the group."""
    def maker(self, name: str) -> int | None: ...
    def remove_group(self, name: str) -> bool: ...
    def set_memory_of_processes(
        self, uuid: bytes, processes: list[tuple[int, int | None, tuple[int, int, int] | None]]
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def hand_over(self) -> dict[str, Any]:
        """What a successor needs; daemon/succession.py has its shape."""

    def leave(self) -> None: ...
    def inherit_listener(self, path: str, fd: int) -> None: ...
    def inherit_ledger(self, image: dict[str, Any]) -> None: ...
    def inherit_caller(self, caller: dict[str, Any]) -> None: ...
    def govern(self) -> None: ...
    def knows_members(self) -> bool: ...
    def members(self) -> list[dict[str, Any]]: ...
    def snapshot(self, listed: bool = True) -> dict[str, Any]:
        """Usage now; daemon/native.py has its shape."""

    def groups_by_pid(self) -> dict[int, str]: ...
    def eventfd(self) -> int: ...
    def take_events(self) -> list[dict[str, Any]]: ...
    def clock(self) -> int:
        """Nanoseconds of the machine's clock, by which steps are recorded; native/machine/clock.h."""

    def trace(self, since: int, most: int) -> tuple[list[tuple[int, int, str, int]], int, bool]:
        """Steps numbered ``since`` and later, ``most`` of them: (time, client, step, value) of each, the number after
        the last of them, and whether some of those asked for are forgotten; native/server/trace.hpp."""
    def trace_at(self, at: int) -> tuple[int, bool]:
        """The number of the first step at that time or later, and whether some of these are forgotten."""
    def traced(self) -> list[dict[str, Any]]:
        """Whose steps there are: client, pid, uid, command, group, device, state, why."""
