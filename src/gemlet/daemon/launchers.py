"""The processes that asked for groups: one descriptor each, however many groups one asked for, and room for everybody.

A process for which there is no place is not watched: its group is removed shortly afterwards, unless a client has
joined by then.
"""

from __future__ import annotations

import contextlib
import resource
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon.fair_limit import may_take_another
from gemlet.daemon.processes import Peer, ProcessLauncher, start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gemlet.daemon.group_entry import Launcher

MAX_LAUNCHERS = 1024
FILES_OF_LAUNCHERS = 8  # one descriptor in so many at most; native/server/server.cpp leaves room for them
FOR_ADMINISTRATORS = 16  # one place in so many


class Told(msgspec.Struct, kw_only=True, frozen=True):
    """A launcher, for the daemon after this one. ``started``: in ticks since boot; another process may have its pid."""

    pid: int
    uid: int
    started: int


class Launchers:
    """The processes, each for as long as somebody holds what `of` returned for it.

    ``owner``: uid of the daemon. ``account``: the uid as which a uid is counted. ``opened``: makes the launcher of
    a pid; raises OSError if there is no such process.
    ``started``: says when a process was started, in ticks since boot.
    """

    def __init__(
        self,
        *,
        owner: int,
        account: Callable[[int], int] = lambda uid: uid,
        opened: Callable[[int], Launcher] = ProcessLauncher,
        started: Callable[[int], int] = start_of,
    ) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._places = min(MAX_LAUNCHERS, files // FILES_OF_LAUNCHERS)
        self._owner = owner
        self._account = account
        self._opened = opened
        self._started = started
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by pid
        self._told: weakref.WeakKeyDictionary[Any, Told] = weakref.WeakKeyDictionary()

    def of(self, peer: Peer) -> Launcher | None:
        """The process, or None if it is gone already or there is no place for it.

        A user may have another place only while more are free than the user has.
        """
        known: Launcher | None = self._known.get(peer.pid)
        if known is not None and known.alive():  # so the pid is still that process
            return known
        account = self._account(peer.uid)
        if not may_take_another(
            self._places,
            taken=len(self._told),
            theirs=sum(self._account(told.uid) == account for told in self._told.values()),
            kept=self._places // FOR_ADMINISTRATORS,
            administers=peer.uid in (0, self._owner),
        ):
            return None
        with contextlib.suppress(OSError):
            made = self._opened(peer.pid)
            self._known[peer.pid] = made
            self._told[made] = Told(pid=peer.pid, uid=peer.uid, started=self._started(peer.pid))
            return made
        return None

    def told(self, launchers: Iterable[Launcher]) -> list[Told]:
        """Those of ``launchers`` that live, for `back`."""
        return [self._told[launcher] for launcher in launchers if launcher in self._told and launcher.alive()]

    def back(self, told: Told) -> Launcher | None:
        """A launcher of the daemon before, as `of`: None if it is gone, or there is no place for it."""
        found = self.of(Peer(told.pid, told.uid))
        return found if found is not None and 0 != self._told[found].started == told.started else None
