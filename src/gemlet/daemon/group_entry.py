"""One group of the daemon's book: what it may have, who made it, and who keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from gemlet.config.rules import violations
from gemlet.daemon.minima import Minimum
from gemlet.errors import Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.model import GroupSpec

Origin = Literal["configuration", "run", "share"]

LINGER_SECONDS = 5.0  # a group made by `gemlet run` outlives its last process by this: a shell loop keeps its group


class Senseless(Refused):
    """Limits that cannot be kept, such as a minimum above the maximum."""

    exit_code = UsageError.exit_code


class Launcher(Protocol):
    """The process that asked for a group, before (and while) it is a client."""

    def alive(self) -> bool:
        """Whether it still runs."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One group. ``owner``: uid that made it, None if the configuration did; ``device``: index it will use, if said.

    ``socket``: path of the socket that is its alone; only a share has one. ``devices``: UUIDs of those that its
    programs may use; none: every one.
    """

    spec: GroupSpec
    origin: Origin
    owner: int | None = None
    device: int | None = None
    socket: str | None = None
    devices: tuple[str, ...] = ()
    named: bool = True  # somebody chose the name
    leaving: bool = False  # no longer configured; goes with its last client
    linger: float = LINGER_SECONDS
    launchers: list[Launcher] = field(default_factory=list)
    vacant_since: float | None = None

    @property
    def transient(self) -> bool:
        return self.origin == "run"

    @property
    def minimum(self) -> Minimum:
        return Minimum(self.spec.name, self.spec.min, self.device)

    def has_launcher(self) -> bool:
        """Whether a process that asked for it still runs."""
        self.launchers[:] = [launcher for launcher in self.launchers if launcher.alive()]
        return bool(self.launchers)


def no_group(name: str, known: Iterable[str]) -> Refused:
    """The error for a group that is not among ``known``."""
    names = ", ".join(sorted(known))
    none = "there is none: `gemlet run` makes one, which goes five seconds after its last program"
    return Refused(f"no group {name}", hint=f"choose one of these groups: {names}" if names else none)


def check(spec: GroupSpec) -> None:
    """Raises `Senseless` if ``spec`` breaks a rule."""
    broken = next(violations(spec), None)
    if broken is not None:
        raise Senseless(f"group {spec.name}: {broken.message}", hint=broken.hint)
