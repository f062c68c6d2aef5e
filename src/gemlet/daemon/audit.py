"""Programs that use a device outside gemlet: NVML's processes against the daemon's clients. Pure but for signals.

Nothing keeps a program from the driver that does not load the hook: another user's container, a static binary, a shell
without `gemlet run`. It takes time and memory that were promised to others, so an administrator sees it, and the
system's daemon can stop or end it. What a program calls itself is for people; who owns it, the kernel says.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.processes import name_of
from gemlet.daemon.programs import started_at
from gemlet.devices.mps import process

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from gemlet.daemon.programs import Key, Program
    from gemlet.devices.device import DeviceInfo
    from gemlet.devices.mps import Process
    from gemlet.model import AuditSpec

ACTIONS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
DONE = {"stop": "stopped", "kill": "killed"}
SETTLE_SECONDS = 30.0  # after the daemon's start: programs of the one before are on their way back


class Outsider(msgspec.Struct, frozen=True, kw_only=True):
    """A process on one device. ``seconds``: since it was first seen. ``graphics``: it only draws, and is left alone.

    ``action``: what has become of it, "stopped" or "killed"; empty: nothing. ``memory``: bytes, None where unknown.
    ``command`` is the kernel's name for it, ``name`` what people call it; ``started``: seconds since 1970.
    """

    pid: int
    uid: int
    command: str
    device: int
    memory: int | None
    graphics: bool
    seconds: float
    action: str = ""
    name: str = ""
    user: str = ""
    started: float | None = None
    container: str = ""

    @property
    def key(self) -> Key:
        """Names one process, though its pid be used again."""
        return self.pid, self.started or 0.0

    @property
    def called(self) -> str:
        """What to call it on the screen."""
        return self.name or self.command


def used_outside(outsiders: Iterable[Outsider]) -> set[int]:
    """Devices that somebody outside uses. One that was just seen for the first time may be on its way in, or ending."""
    return {who.device for who in outsiders if who.seconds > 0}


def named(who: Outsider, program: Program) -> Outsider:
    """``who`` with what is known of its program."""
    return msgspec.structs.replace(who, name=program.name, container=program.container)


@dataclass(slots=True)
class _Seen:
    """One process. ``since``: when it was first seen; ``action``: what has become of it."""

    since: float
    started: float | None
    action: str = ""


class Audit:
    """Remembers who is outside and since when.

    ``acts``: whether this daemon may do more than say so. ``simulated``: on the simulated machine root is a user.
    ``name_of``: the name of a uid; ``account``: the uid as which it is counted, of a container's its user's.
    """

    def __init__(
        self,
        *,
        acts: bool,
        simulated: bool = False,
        find: Callable[[int], Process | None] = process,
        name_of: Callable[[int], str] = name_of,
        account: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        self._acts = acts
        self._simulated = simulated
        self._find = find
        self._name_of = name_of
        self._account = account
        self._seen: dict[tuple[int, int], _Seen] = {}  # by pid and start, so that a pid that is used again is another

    def look(
        self,
        devices: Iterable[DeviceInfo],
        insiders: Collection[int],
        spec: AuditSpec,
        *,
        allowed: Collection[int] = (),
        now: float,
    ) -> tuple[list[Outsider], list[Outsider]]:
        """Everybody outside, by device; and those who are new, or to whom something was done this moment.

        ``insiders``: pids of clients and of MPS's servers. ``allowed``: uids that are left alone. ``now``: seconds
        since the daemon started.
        """
        found: list[Outsider] = []
        news: list[Outsider] = []
        before, self._seen = self._seen, {}
        for device in devices:
            for entry in device.processes:
                who = self._find(entry.pid) if entry.pid not in insiders else None
                if who is None:
                    continue
                key = (who.pid, who.started)
                fresh = key not in before and key not in self._seen
                seen = before.get(key) or self._seen.get(key) or _Seen(now, started_at(who.started))
                self._seen[key] = seen
                is_allowed = who.uid in allowed or self._account(who.uid) in allowed
                left_alone = entry.graphics or (who.uid == 0 and not self._simulated) or is_allowed
                acted = not left_alone and self._act(key, seen, spec, now=now)
                outsider = Outsider(
                    pid=who.pid,
                    uid=who.uid,
                    command=who.command,
                    device=device.index,
                    memory=entry.memory_used,
                    graphics=entry.graphics,
                    seconds=now - seen.since,
                    action=seen.action,
                    user=self._name_of(who.uid),
                    started=seen.started,
                )
                found.append(outsider)
                if acted or (fresh and not entry.graphics):
                    news.append(outsider)
        return found, news

    def _act(self, key: tuple[int, int], seen: _Seen, spec: AuditSpec, *, now: float) -> bool:
        number = ACTIONS.get(spec.policy)
        due = now - seen.since >= spec.after and (now >= SETTLE_SECONDS or self._simulated)
        if number is None or not self._acts or not due or seen.action == DONE[spec.policy]:
            return False
        if not self._signal(key, number):
            return False
        seen.action = DONE[spec.policy]
        return True

    def _signal(self, key: tuple[int, int], number: signal.Signals) -> bool:
        pid, started = key
        if pid <= 1 or pid == os.getpid():
            return False
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                who = self._find(pid)  # after the pidfd: it is the same process until the signal
                if who is not None and 0 != who.started == started:
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False
