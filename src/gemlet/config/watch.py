"""Tells when a configuration file changes: ``async for change in changes(path)``.

inotify through ctypes, a few lines, rather than a dependency: watchfiles brings a compiled library and a thread, and a
Kubernetes ConfigMap would still be ours to follow, because nothing ever happens to the file itself there:

    gemlet.toml -> ..data/gemlet.toml        ..data -> ..2026_01_01        then ..data is renamed over

So not the file is watched but every name that the path leads through: each symbolic link on the way, and the file, in
the directory that holds it. An editor's rename, a ConfigMap's swap, a deletion and a re-creation are all events of such
a name. The file itself is watched too, because one that is bind-mounted into a container changes under another name.

A program that writes in place is seen twice, when it writes and when it closes. What it has written before it closes
may be half a file that is valid, without the limits that are yet to come, so it is waited for: for seconds, since it
may never close. What another machine writes on a network file system is
not seen by inotify at all.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import stat
import struct
from enum import Enum
from typing import Self

from gemlet.errors import ConfigError

# Seconds before a change is reported. The first and the second keep it below 50 ms from a close or a rename on.
SETTLED = 0.010  # without a further event, after one that leaves a whole file: close, rename, deletion
LONGEST = 0.040  # after the first event, whatever else happens: somebody may write all the time
UNCLOSED = 5.0  # after the first event, if what has been written has not been closed

AGAIN = 5.0  # after which a place that could not be watched is tried again: the user's other programs had all watches

logger = logging.getLogger(__name__)

_IN_MODIFY = 0x2
_IN_ATTRIB = 0x4
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000
_ANY = (
    _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE
    | _IN_DELETE_SELF | _IN_MOVE_SELF
)  # fmt: skip
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_MAX_LINKS = 40  # the kernel's own limit

_libc = ctypes.CDLL(None, use_errno=True)


class Change(Enum):
    """What has become of the file."""

    WRITTEN = "written"  # it is there and may have new content
    GONE = "gone"  # it is not there; the name may come back


def changes(path: str | os.PathLike[str]) -> Changes:
    """The changes of the file at ``path`` from now on, for ``async for``; it need not exist yet.

    Watching begins with this call, not with the first iteration: call it before the file is loaded and no change falls
    between. Raises ConfigError if the kernel gives no more inotify instances or watches.
    """
    return Changes(path)


class Changes:
    """See changes(). For one task; a cancelled iteration loses nothing. Close it, or use it in ``with``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100  (resolve() would follow the links that are watched)
        self._names: dict[int, set[bytes]] = {}  # by watch: names of interest in that directory, b"" for itself
        self._due: float | None = None  # when to report the changes seen, on the loop's clock
        self._first: float | None = None  # when the first of them was seen
        self._follow_at: float | None = None  # for the kernel had no watch left
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise self._error()
        try:
            self._follow()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        if self._descriptor < 0:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        while self._due is None or loop.time() < self._due:
            await self._readable(min((at for at in (self._due, self._follow_at) if at is not None), default=None))
            self._take_events(loop.time())
            if self._follow_at is not None and loop.time() >= self._follow_at and self._follow_if_possible(loop.time()):
                self._due = loop.time()  # nobody saw what happened meanwhile
        self._due = self._first = None
        return Change.WRITTEN if os.path.exists(self._path) else Change.GONE  # noqa: PTH110, ASYNC240

    async def _readable(self, until: float | None) -> None:
        """Waits for an event or for ``until``. The loop knows the descriptor only meanwhile."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        timer = loop.call_at(until, woken.set) if until is not None else None
        loop.add_reader(self._descriptor, woken.set)
        try:
            await woken.wait()
        finally:
            loop.remove_reader(self._descriptor)
            if timer:
                timer.cancel()

    def _take_events(self, now: float) -> None:
        try:
            buffer = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        relevant = structural = False
        settled = True
        offset = 0
        while offset < len(buffer):
            watch, mask, _, length = _EVENT.unpack_from(buffer, offset)
            offset += _EVENT.size + length
            name = buffer[offset - length : offset].rstrip(b"\0")
            if not (mask & _IN_Q_OVERFLOW or name in self._names.get(watch, ())):
                continue
            relevant = True
            if mask & (_IN_MODIFY | _IN_CLOSE_WRITE | _IN_ATTRIB):
                settled = not mask & _IN_MODIFY
            else:
                structural = True
                settled = not (mask & _IN_CREATE and self._is_being_made(name))
        if relevant:
            self._first = self._first or now
            self._due = min(now + SETTLED, self._first + LONGEST) if settled else self._first + UNCLOSED
        if structural:
            self._follow_if_possible(now)

    def _is_being_made(self, name: bytes) -> bool:
        """Whether a name that has come is that of a file which somebody is going to write to and close; of a link
        nothing more is to be heard."""
        if name != os.path.basename(os.fsencode(self._path)):  # noqa: PTH119
            return False
        try:
            status = os.lstat(self._path)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_nlink == 1

    def _follow_if_possible(self, now: float) -> bool:
        """Whether the kernel gives the watches; if not, they are asked for again."""
        try:
            self._follow()
        except ConfigError as error:
            if self._follow_at is None:
                logger.warning("configuration %s; trying again", error)
            self._follow_at = now + AGAIN
            return False
        self._follow_at = None
        return True

    def _follow(self) -> None:
        """Watches every name the path leads through now, and no other."""
        way = _names_on_the_way(self._path)
        for _ in range(_MAX_LINKS):
            self._watch(way)
            # A name may have appeared just before its directory was watched.
            before, way = way, _names_on_the_way(self._path)
            if way == before:
                return

    def _watch(self, way: list[tuple[str, str]]) -> None:
        names: dict[int, set[bytes]] = {}
        for directory, name in way:
            watch = _libc.inotify_add_watch(self._descriptor, os.fsencode(directory), _ANY)
            if watch >= 0:
                names.setdefault(watch, {b""}).add(os.fsencode(name))
            elif ctypes.get_errno() not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
                raise self._error()
        for watch in self._names.keys() - names.keys():
            _libc.inotify_rm_watch(self._descriptor, watch)
        self._names = names

    def _error(self) -> ConfigError:
        code = ctypes.get_errno()
        limit = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}.get(code)
        hint = f"raise it: sysctl fs.inotify.{limit}" if limit else None
        return ConfigError(f"cannot be watched: {os.strerror(code)}", path=self._path, hint=hint)


def _names_on_the_way(path: str) -> list[tuple[str, str]]:
    """(directory, name) of every symbolic link on the way to ``path`` and of the file, which also stands for itself.

    Where the way ends early, the last pair is the name that is missing.
    """
    names: list[tuple[str, str]] = []
    here, ahead, links = "/", path.split("/"), 0
    while ahead:
        name = ahead.pop(0)
        if name in {"", "."}:
            continue
        if name == "..":
            here = os.path.dirname(here)  # noqa: PTH120  (links are resolved by hand, so this is the true parent)
            continue
        entry = os.path.join(here, name)  # noqa: PTH118
        try:
            target = os.readlink(entry)  # noqa: PTH115
        except OSError as error:
            if error.errno != errno.EINVAL:  # not even something other than a link
                return [*names, (here, name)]
            if not ahead:
                return [*names, (here, name), (entry, "")]
            here = entry
            continue
        names.append((here, name))
        links += 1
        if links > _MAX_LINKS:
            return names
        here = "/" if target.startswith("/") else here
        ahead = target.split("/") + ahead
    return names
