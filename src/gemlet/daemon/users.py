"""Names and uids of users, kept: where they come from a directory service, one may take minutes to find.

The look-ups are in a thread, and what is not known in time is answered without it: a uid stands for its name, and a
user whose uid is not known may do nothing.
"""

from __future__ import annotations

import pwd
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from gemlet.config.toml_values import check_users
from gemlet.daemon.aside import Aside
from gemlet.errors import InvalidValue, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Key = int | str  # a uid, whose name is looked for, or a name

PATIENCE = 2.0  # seconds that a request waits for all its users together
FRESH_SECONDS = 300.0  # after which a user is looked up again, and
UNKNOWN_SECONDS = 10.0  # one whom nobody knew: the account may just be made
MOST_NOBODIES = 4096  # names that nobody has and uids without a name: anybody may ask for any number of them
MOST_KNOWN = 1 << 17  # users; whom groups and quotas name must not be forgotten because others were asked for
MOST_ASKED = 256  # at a time on behalf of one user; others are not known until these are


class Found(NamedTuple):
    """``value``: the uid or the name; None: there is no such user. ``at``: when, by a steady clock."""

    value: Key | None
    at: float


def look(key: Key) -> Key | None:
    """What the system says. May block for long."""
    try:
        return pwd.getpwuid(key).pw_name if isinstance(key, int) else pwd.getpwnam(key).pw_uid
    except (KeyError, ValueError, OverflowError):  # nobody, and what is no name or uid
        return None


class Users:
    """The users of a machine. No call but `learn` waits, and that not long."""

    def __init__(self, look: Callable[[Key], Key | None] = look, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._aside = Aside("users")
        self._lock = threading.Lock()  # of what follows
        self._known: dict[Key, Found] = {}
        self._nobodies: dict[Key, Found] = {}
        self._asked: dict[Hashable, set[Key]] = {}  # by on whose behalf
        self._missed: set[Key] = set()  # of those that are asked: names that were needed before they were known
        self._late = False

    def uid_of(self, user: str) -> int:
        """The uid of a user name or a number. Raises `Refused` for a name that is unknown, or not known yet."""
        try:
            (user,) = check_users((user,))
        except InvalidValue as error:
            raise Refused(error.message, hint=error.hint) from None
        if user.isascii() and user.isdecimal():
            return int(user)
        found = self._find(user)
        if found is None:
            with self._lock:
                if any(user in asked for asked in self._asked.values()):
                    self._missed.add(user)
            raise Refused(
                f"user {user} is not known: the machine's directory of users has not answered yet",
                hint="try again, or name the user by uid",
            )
        if not isinstance(found.value, int):
            raise Refused(f"no user {user} on this machine", hint="choose one that `getent passwd` lists")
        return found.value

    def name_of(self, uid: int) -> str:
        """The user name of a uid, or its number as text (containers often have no entry)."""
        found = self._find(uid)
        return str(uid) if found is None or found.value is None else str(found.value)

    async def learn(
        self,
        users: Iterable[Key],
        *,
        patience: float = PATIENCE,
        all_of_them: bool = False,
        asked_by: Hashable = None,
    ) -> None:
        """Finds out who ``users`` are, as far as that is possible within ``patience`` seconds.

        A name that nobody has ends it, as each may take long, but for ``all_of_them``. ``asked_by``: on whose behalf;
        nobody waits for what others ask.
        """
        end = self._clock() + patience
        for key in dict.fromkeys(users):
            if isinstance(key, str) and key.isdecimal():
                continue
            if not self._is_fresh(key) and not await self._learn(key, end - self._clock(), asked_by):
                return
            known = self._last(key)
            if isinstance(key, str) and not all_of_them and (known is None or known.value is None):
                return

    def answered_late(self) -> bool:
        """Whether one of the names that were needed before they were known has become known since the last call."""
        with self._lock:
            late, self._late = self._late, False
        return late

    async def _learn(self, key: Key, patience: float, asked_by: Hashable) -> bool:
        self._ask(key, asked_by)
        return patience > 0 and await self._aside.settle(patience, lane=asked_by)

    def _find(self, key: Key) -> Found | None:
        if not self._is_fresh(key):
            with self._lock:
                is_asked = any(key in asked for asked in self._asked.values())
            if not is_asked:
                self._ask(key, None)
        return self._last(key)

    def _last(self, key: Key) -> Found | None:
        return self._known.get(key) or self._nobodies.get(key)

    def _is_fresh(self, key: Key) -> bool:
        found = self._last(key)
        if found is None:
            return False
        return self._clock() - found.at < (FRESH_SECONDS if found.value is not None else UNKNOWN_SECONDS)

    def _ask(self, key: Key, asked_by: Hashable) -> None:
        with self._lock:
            asked = self._asked.setdefault(asked_by, set())
            if key in asked or len(asked) >= MOST_ASKED:
                return
            asked.add(key)
        self._aside.do(lambda: self._store(key, asked_by), lane=asked_by)

    def _store(self, key: Key, asked_by: Hashable) -> None:
        found = {key: self._look(key)}
        name = found[key]
        if isinstance(key, int) and isinstance(name, str):  # who has been told a name asks for its uid next
            found[name] = self._look(name)
        with self._lock:
            for asked, value in found.items():
                self._known.pop(asked, None)  # the one that was found longest ago comes first
                self._nobodies.pop(asked, None)
                there = self._nobodies if value is None else self._known
                there[asked] = Found(value, self._clock())
            for kept, most in ((self._known, MOST_KNOWN), (self._nobodies, MOST_NOBODIES)):
                while len(kept) > most:
                    del kept[next(iter(kept))]
            self._asked[asked_by].discard(key)
            if not self._asked[asked_by]:
                del self._asked[asked_by]
            self._late = self._late or not self._missed.isdisjoint(found)
            self._missed -= found.keys()
