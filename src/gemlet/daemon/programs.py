"""Who a process is to people: its name, user, start and container, read from /proc.

A command line is memory of the program, and the kernel lets its reader wait while the program's memory is being
changed, for ever if the program hangs in a driver. So the daemon reads in a thread and never waits long for it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.aside import Aside
from gemlet.daemon.program_names import VARIABLES, called, container_of
from gemlet.devices.mps import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATIENCE = 0.2  # seconds that a status waits for the names of new programs
MOST_BYTES = 1 << 16  # of a command line and of an environment

Key = tuple[int, float]  # a pid, and what tells it from others of the same number


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """``started``: seconds since 1970, None where unknown. ``container``: its name, "" outside of one."""

    name: str = ""
    started: float | None = None
    container: str = ""


def look(pid: int) -> Program:
    """The program with this pid; an empty one if it has gone. May block: see above."""
    who = process(pid)
    if who is None:
        return Program()
    environment = {}
    for entry in _read(pid, "environ").split("\0"):  # nothing, where this user may not look
        name, _, value = entry.partition("=")
        if name in VARIABLES:
            environment[name] = value
    arguments = _read(pid, "cmdline").rstrip("\0").split("\0")
    return Program(
        name=called(arguments, command=who.command, environment=environment),
        started=started_at(who.started),
        container=container_of(_read(pid, "cgroup"), environment),
    )


def started_at(ticks: int) -> float | None:
    """Seconds since 1970 of a start in clock ticks since boot; None for 0, which is not known."""
    if ticks == 0:
        return None
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    return None


def _read(pid: int, name: str) -> str:
    try:
        with Path("/proc", str(pid), name).open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


class Programs:
    """Looks each program up once, in a thread."""

    def __init__(self, look: Callable[[int], Program] = look) -> None:
        self._look = look
        self._found: dict[Key, Program | None] = {}  # None: asked, not yet known
        self._aside = Aside("programs")

    def find(self, key: Key) -> Program:
        """What is known of it by now."""
        return self._found.get(key) or Program()

    def ask(self, keys: Iterable[Key]) -> bool:
        """Looks up those of ``keys`` that are new, and forgets all others. Whether there were new ones."""
        wanted = set(keys)
        for gone in self._found.keys() - wanted:
            del self._found[gone]
        new = wanted - self._found.keys()
        for key in new:
            self._found[key] = None
        if new:
            self._aside.do(self._look_at_new)
        return bool(new)

    async def settle(self, keys: Iterable[Key], *, patience: float = PATIENCE) -> None:
        """As `ask`, and gives the thread a moment to find out about new ones."""
        if not self.ask(keys):
            return
        await self._aside.settle(patience)

    def _look_at_new(self) -> None:
        for key in [key for key, found in list(self._found.items()) if found is None]:
            found = self._look(key[0])
            if key in self._found:
                self._found[key] = found
