"""Who a process is to people: its name, user, start and container, read from /proc.

A command line is memory of the program, and the kernel lets its reader wait while the program's memory is being
changed, for ever if the program hangs in a driver, or has put its command line into a file of a file system that does
not answer. So the daemon reads in a thread of the user's and never waits long for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.aside import Aside
from gemlet.daemon.program_names import VARIABLES, called, container_of
from gemlet.devices.mps import process, user_of
from gemlet.devices.started import started_at

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


def _read(pid: int, name: str) -> str:
    try:
        with Path("/proc", str(pid), name).open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


class Programs:
    """Looks each program up once, in a thread of its user's.

    ``user_of``: the uid of a pid, as far as it is known; ``account``: the uid as which that is counted.
    """

    def __init__(
        self,
        look: Callable[[int], Program] = look,
        user_of: Callable[[int], int | None] = user_of,
        account: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        self._look = look
        self._user_of = user_of
        self._account = account
        self._found: dict[Key, Program | _Asked] = {}
        self._aside = Aside("programs")

    def find(self, key: Key) -> Program:
        """What is known of it by now."""
        found = self._found.get(key)
        return found if isinstance(found, Program) else Program()

    def ask(self, keys: Iterable[Key]) -> set[int | None]:
        """Looks up those of ``keys`` that are new, and forgets all others. Whose new ones there were."""
        wanted = set(keys)
        for gone in self._found.keys() - wanted:
            del self._found[gone]
        users = set()
        for key in wanted - self._found.keys():
            uid = self._user_of(key[0])
            user = None if uid is None else self._account(uid)
            self._found[key] = _Asked(user)
            users.add(user)
        for user in users:
            self._aside.do(_LookAtNew(self, user), lane=user)
        return users

    async def settle(self, keys: Iterable[Key], *, patience: float = PATIENCE) -> None:
        """As `ask`, and gives the threads a moment to find out about new ones."""
        users = self.ask(keys)
        await asyncio.gather(*(self._aside.settle(patience, lane=user) for user in users))

    def look_at_new(self, user: int | None) -> None:
        """Looks up the new programs of ``user``. May block."""
        for key in [key for key, found in list(self._found.items()) if found == _Asked(user)]:
            found = self._look(key[0])
            if key in self._found:
                self._found[key] = found


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of a program of ``user``'s, and not yet known."""

    user: int | None


@dataclass(frozen=True, slots=True)
class _LookAtNew:
    programs: Programs
    user: int | None

    def __call__(self) -> None:
        self.programs.look_at_new(self.user)
