"""Whose programs those of a uid are, where users are counted: quotas, and places of which each user has some.

A user to whom /etc/subuid gives thousands of uids, as distributions do for containers without root, may run programs
under each of them. What a program may do goes by its own uid; what its user may have, by that user's account.
"""

from __future__ import annotations

import bisect
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gemlet.config.text_file import read_text
from gemlet.daemon.aside import Aside
from gemlet.daemon.users import look
from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

logger = logging.getLogger(__name__)

FILE = Path("/etc/subuid")
MOST_UID = 2**32 - 2  # the last is nobody's
MOST_BYTES = 8 * 1024**2


class Given(NamedTuple):
    """A line of the file: the user, or its uid, to whom the uids from ``first`` to ``last`` are given."""

    owner: str
    first: int
    last: int


class Range(NamedTuple):
    """Uids whose programs are counted as those of ``account``."""

    first: int
    last: int
    account: int


def parse(text: str) -> list[Given]:
    """What the lines say, OWNER:FIRST:COUNT; lines that say nothing are left out, as newuidmap does."""
    found = []
    for line in text.splitlines():
        owner, *numbers = line.split(":")
        if not owner or len(numbers) != 2 or not all(n.isascii() and n.isdecimal() and len(n) < 12 for n in numbers):
            continue
        first, count = map(int, numbers)
        if count and first <= MOST_UID:
            found.append(Given(owner, first, min(first + count - 1, MOST_UID)))
    return found


def ranges(given: Iterable[Given], uids: Mapping[str, int], administrators: frozenset[int]) -> list[Range]:
    """In order, and none within another: of what is given twice, the one that begins first counts.

    ``uids``: of the owners that are known; what others have is counted as the first of it. What is given to
    ``administrators``, who have no quota, is for others: each of these uids is counted by itself.
    """
    made: list[Range] = []
    for owner, first, last in sorted(given, key=lambda each: (each.first, each.last)):
        account = uids.get(owner, first)
        if account in administrators:
            continue
        free = max(first, made[-1].last + 1 if made else 1)
        if free <= last:
            made.append(Range(free, last, account))
    return made


class SubordinateUids:
    """What ``file`` says. ``shared``: users meet here; no other daemon has programs of several users.

    ``look``: the uid of a user, None for nobody; it may take long, and so it is asked beside the event loop.
    """

    def __init__(self, *, shared: bool, file: Path = FILE, look: Callable[[str], object] = look) -> None:
        self._file = file if shared else None
        self._look = look
        self._aside = Aside("subordinate uids")
        self._seen: tuple[int, int, int] | None = None
        self.ranges: list[Range] = []

    async def learn(self, patience: float = 0.0) -> None:
        """Has the file read if it is another than before, and waits for that so many seconds."""
        if self._file is not None and self._identity() != self._seen:
            self._aside.do(self._read)
            await self._aside.settle(patience)

    def account(self, uid: int) -> int:
        """The uid as which programs of ``uid`` are counted."""
        found = self.ranges
        at = bisect.bisect_right(found, uid, key=lambda each: each.first) - 1
        return found[at].account if at >= 0 and uid <= found[at].last else uid

    def _read(self) -> None:
        assert self._file is not None
        seen = self._identity()
        try:
            given = parse(read_text(self._file, regular=True, most=MOST_BYTES)) if seen is not None else []
        except ConfigError as error:
            logger.warning("subordinate uids: %s", error)
            given = []
        administrators = frozenset({0, os.getuid()})
        owners = dict.fromkeys(each.owner for each in given)
        uids = {owner: int(owner) for owner in owners if owner.isascii() and owner.isdecimal() and len(owner) < 12}
        uids |= {"root": 0}
        if not self.ranges:  # until all owners are known
            self.ranges = ranges(given, uids, administrators)
        uids |= {owner: uid for owner in owners if owner not in uids and isinstance(uid := self._look(owner), int)}
        self.ranges = ranges(given, uids, administrators)
        self._seen = seen

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            status = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)
