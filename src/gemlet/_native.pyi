"""Native parts of the daemon. Times are integer nanoseconds of whatever clock the caller keeps."""

from typing import Any, Literal, TypedDict

NEVER: int

class GroupUsage(TypedDict):
    id: int
    name: str
    min: float
    max: float
    weight: float
    sm: float
    priority: str
    target: float
    """Share the policy aims at now, given who wants; 0 while the group does not want."""
    used: int
    """Device time charged since the group exists."""
    throttled: int
    """How long it waited because of its maximum, since it exists."""
    clients: int
    waiting: int
    holding: int
    reason: str
    """Why it waits or runs, for people."""

Action = tuple[Literal["grant", "update", "revoke", "park", "unpark"], int, int, int, bool, bool, bool]
"""(kind, client, deadline, window, contended, beside, patient).

All but the first two are meant for grant, update and revoke only.
"""

class Arbiter:
    """Decides who holds the token of one device; native/arbiter/arbiter.hpp describes the events and actions.

    ``parameters`` are the fields of its ``Parameters`` by name. Raises ValueError for an unknown policy or parameter.
    """

    def __init__(self, policy: str, **parameters: float) -> None: ...
    def set_group(
        self,
        name: str,
        now: int,
        *,
        min: float = 0.0,  # noqa: A002
        max: float = 1.0,  # noqa: A002
        weight: float = 1.0,
        sm: float = 1.0,
        priority: str = "normal",
    ) -> int:
        """Creates the group or changes the live one of that name; its id. Raises ValueError for senseless shares."""
    def remove_group(self, group: int, now: int) -> None:
        """Raises ValueError while the group has clients."""
    def add_client(self, client: int, group: int, now: int) -> None: ...
    def remove_client(self, client: int, now: int) -> None: ...
    def want(self, client: int, now: int) -> None: ...
    def took(self, client: int, now: int) -> None: ...
    def stopped(
        self, client: int, reason: Literal["deadline", "idle", "revoked", "exit"], tail: int, now: int
    ) -> None: ...
    def drained(self, client: int, at: int, now: int) -> None: ...
    def next_event(self) -> int: ...
    def tick(self, now: int) -> None: ...
    def take_actions(self) -> list[Action]: ...
    def usage(self, now: int) -> list[GroupUsage]: ...
    @property
    def ignored(self) -> int:
        """Events so far that made no sense."""

class ResidencyUsage(TypedDict):
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
        overhead: float = 0.025,
        epoch_min: int = ...,
        epoch_max: int = ...,
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
    def set_fixed(self, client: int, bytes: int, now: int) -> None: ...  # noqa: A002
    def report(self, client: int, mapped: int, seen: int, complete: bool, now: int) -> None: ...
    def want(self, client: int, now: int) -> None: ...
    def idle(self, client: int, now: int) -> None: ...
    def resident(self, client: int) -> bool: ...
    def fits_fixed(self, bytes: int) -> bool: ...  # noqa: A002
    def within(self) -> bool: ...
    def held(self) -> int: ...
    def host_promised(self) -> int: ...
    def next_event(self) -> int: ...
    def tick(self, now: int) -> None: ...
    def take_orders(self) -> list[tuple[int, int, int]]:
        """(client, bytes it may have on the device, number of the order)"""
    def usage(self, now: int) -> list[ResidencyUsage]: ...

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

def decision_cost(policy: str, *, clients: int, groups: int, decisions: int) -> list[int]:
    """Wall-clock nanoseconds of each of ``decisions`` hand-overs, from the holder's stop to the next grant."""

def __getattr__(name: str) -> Any: ...  # the server's part
