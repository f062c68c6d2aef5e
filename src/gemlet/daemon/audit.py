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

from gemlet.daemon.processes import ProcessLauncher, name_of
from gemlet.devices.mps import process
from gemlet.devices.started import started_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from gemlet.daemon.programs import Key, Program
    from gemlet.devices.device import DeviceInfo
    from gemlet.devices.mps import Process
    from gemlet.model import AuditSpec

ACTIONS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
DONE = {"stop": "stopped", "kill": "killed"}
MOST_HELD = 256  # processes that are held by a descriptor; of others it must be known when they were started
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
    """One process. ``since``: when it was first seen; ``ticks``: when it was started, 0 while nobody can tell;
    ``action``: what has become of it. ``process``: by pidfd, as a program may keep its start from being known.
    """

    since: float
    ticks: int
    started: float | None
    process: ProcessLauncher | None
    action: str = ""

    def is_still(self, who: Process) -> bool:
        if self.process is not None and not self.process.alive():
            return False
        if self.process is not None and 0 in (self.ticks, who.started):
            return True
        return self.ticks == who.started


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
        self._seen: dict[int, _Seen] = {}  # by pid
        self._held = 0  # of them by a descriptor

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
        before, self._seen, self._held = self._seen, {}, 0
        for device in devices:
            for entry in device.processes:
                who = self._find(entry.pid) if entry.pid not in insiders else None
                if who is None:
                    continue
                seen = self._seen.get(who.pid) or before.get(who.pid)
                fresh = seen is None or not seen.is_still(who)
                if seen is None or fresh:
                    seen = self._first_seen(who, now)
                elif seen.ticks == 0:
                    seen.ticks, seen.started = who.started, started_at(who.started)
                if self._seen.get(who.pid) is not seen:
                    self._held += seen.process is not None
                self._seen[who.pid] = seen
                is_allowed = who.uid in allowed or self._account(who.uid) in allowed
                left_alone = entry.graphics or (who.uid == 0 and not self._simulated) or is_allowed
                acted = not left_alone and self._act(who, seen, spec, now=now)
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

    def _first_seen(self, who: Process, now: float) -> _Seen:
        held = None
        if self._held < MOST_HELD:
            with contextlib.suppress(OSError):
                held = ProcessLauncher(who.pid)
        return _Seen(now, who.started, started_at(who.started), held)

    def _act(self, who: Process, seen: _Seen, spec: AuditSpec, *, now: float) -> bool:
        number = ACTIONS.get(spec.policy)
        due = now - seen.since >= spec.after and (now >= SETTLE_SECONDS or self._simulated)
        if number is None or not self._acts or not due or seen.action == DONE[spec.policy]:
            return False
        if not self._signal(who, seen, number):
            return False
        seen.action = DONE[spec.policy]
        return True

    def _signal(self, who: Process, seen: _Seen, number: signal.Signals) -> bool:
        if who.pid <= 1 or who.pid == os.getpid():
            return False
        with contextlib.suppress(OSError):
            process = seen.process or ProcessLauncher(who.pid)
            again = self._find(who.pid)  # with the pidfd: it is the same process until the signal
            if again is None or again.uid != who.uid or not process.alive():
                return False
            if seen.process is None and seen.ticks == 0:
                return False
            if seen.is_still(again):
                process.send(number)
                return True
        return False
