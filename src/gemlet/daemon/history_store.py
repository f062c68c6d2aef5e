"""The recorded history on disk: an SQLite file of moments at three distances. For one thread, which makes and uses it.

A moment of 10 s is the mean of those of 1 s, one of 5 min that of those of 10 s: they are made when their time is over,
by whatever daemon runs then, so nothing but the moments themselves has to survive a daemon.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.daemon.history_moment import FORMAT, Moment, MomentSums, unpack
from gemlet.model import LONGEST_BACK_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set
    from pathlib import Path

    from gemlet.daemon.history_moment import Values

logger = logging.getLogger(__name__)

HOUR, DAY = 3600, 86400
PAGE_BYTES = 4096
MAX_BYTES = 48_000_000  # of the file; its log takes at most 2 MB more
FULL = 0.95  # of it; then the oldest moments go
GONE_AT_ONCE = 0.1  # of each tier
FASTEST = 10  # moments that grow too old and go, for each that comes: a clock that is wrong for a while costs no more
LOG_PAGES = 256  # after which the log goes into the file

Key = tuple[str, str]  # UUID of a device, group; the device itself has the group ""


@dataclass(frozen=True, slots=True)
class Tier:
    """Moments of ``step`` seconds, kept for ``keep`` seconds."""

    step: int
    keep: int

    @property
    def table(self) -> str:
        return f"every_{self.step}"


TIERS = (Tier(1, HOUR), Tier(10, DAY), Tier(300, LONGEST_BACK_S))
SPARE = 60  # seconds more that moments are kept: a question about the last hour may be answered late


def tier_for(seconds: float) -> Tier:
    """The finest tier that reaches back so far."""
    return next((tier for tier in TIERS if seconds <= tier.keep + SPARE), TIERS[-1])


class Store:
    """The file. Every method raises sqlite3.Error where the file or the disk fails, and then has changed nothing."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """Opens or makes it, of mode 0600; one that is damaged or of another format is moved aside. Raises OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connection = _open(path, max_bytes)
        self._series: dict[Key, int] = _series(self._connection)
        self._rolled = {tier: self._last(tier) for tier in TIERS[1:]}

    def close(self) -> None:
        """Puts the log into the file."""
        self._connection.close()

    def add(self, moments: Mapping[int, tuple[Mapping[Key, Values], Mapping[Key, Values]]]) -> None:
        """Takes moments of 1 s by the time of their end: values of groups and of devices."""
        if not moments:
            return
        with self._transaction() as connection:
            self._make_room(max(moments))
            packed = [
                (time, Moment(self._numbered(groups, time), self._numbered(devices, time)).pack())
                for time, (groups, devices) in moments.items()
            ]
            connection.executemany(f"INSERT OR REPLACE INTO {TIERS[0].table} VALUES (?, ?)", packed)
            self._roll(max(moments))

    def series(self) -> dict[int, Key]:
        """What the numbers of series stand for."""
        return {number: key for key, number in self._series.items()}

    def moments(
        self,
        tier: Tier,
        after: float,
        until: float,
        series: Set[int] | None = None,
        columns: Set[str] = frozenset(),
    ) -> Iterator[tuple[int, Moment]]:
        """Moments by time, oldest first, of ``series`` or of all; those that cannot be read are left out.

        They have the `record.chosen` ``columns``.

        The last one of a coarse tier may be the mean of what there is of its time.
        """
        rows = self._connection.execute(
            # A damaged file may have something else there than bytes.
            f"SELECT time, coalesce(CAST(data AS BLOB), x'') FROM {tier.table} WHERE time > ? AND time <= ?"
            " ORDER BY time",
            (after, until),
        )
        for time, data in rows:
            try:
                yield time, unpack(data, series, columns)
            except ValueError as error:
                logger.debug("history time=%d: %s", time, error)
        if tier is not TIERS[0]:
            yield from self._means(tier, max(after, self._rolled[tier]), until, series, columns).items()

    def _means(
        self,
        tier: Tier,
        after: float,
        until: float,
        series: Set[int] | None = None,
        columns: Set[str] = frozenset(),
    ) -> dict[int, Moment]:
        """Moments of ``tier`` made from those of the next finer one, by time."""
        buckets: dict[int, MomentSums] = {}
        for time, moment in self.moments(TIERS[TIERS.index(tier) - 1], after, until, series, columns):
            end = -(-time // tier.step) * tier.step
            if end not in buckets:
                buckets[end] = MomentSums(columns)
            buckets[end].add(moment)
        return {time: sums.mean() for time, sums in buckets.items()}

    def size(self) -> int:
        """Bytes in use."""
        pages, free = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
        )
        return int(pages - free) * PAGE_BYTES

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        before = dict(self._series), dict(self._rolled)
        try:
            with self._connection:
                yield self._connection
        except BaseException:
            self._series, self._rolled = before
            raise

    def _numbered(self, values: Mapping[Key, Values], now: int) -> dict[int, Values]:
        return {self._number(key, now): row for key, row in values.items()}

    def _number(self, key: Key, now: int) -> int:
        number = self._series.get(key)
        if number is None:
            number = self._connection.execute(
                "INSERT INTO series (device, name, seen) VALUES (?, ?, ?)", (*key, now)
            ).lastrowid
            assert number is not None
            self._series[key] = number
        return number

    def _roll(self, now: int) -> None:
        for tier in TIERS[1:]:
            end = now // tier.step * tier.step
            since = self._rolled[tier]
            if end < since:  # the clock was set back
                since = end - tier.step
            if end == since:
                return
            means = self._means(tier, since, end)
            self._connection.executemany(
                f"INSERT OR REPLACE INTO {tier.table} VALUES (?, ?)",
                [(time, moment.pack()) for time, moment in means.items()],
            )
            self._rolled[tier] = end
        self._see(now, means.values())
        self._forget(now)

    def _forget(self, now: int) -> None:
        for tier in TIERS:
            self._connection.execute(
                f"DELETE FROM {tier.table} WHERE time IN"
                f" (SELECT time FROM {tier.table} WHERE time <= ? ORDER BY time LIMIT ?)",
                (now - tier.keep - SPARE, FASTEST * TIERS[-1].step // tier.step),
            )
        self._make_room(now)
        self._forget_series(min([now - TIERS[-1].keep, *self._oldest()]))

    def _make_room(self, now: int) -> None:
        """Forgets the oldest moments while there is little room, and the names of which they alone had something."""
        most = self._connection.execute("PRAGMA max_page_count").fetchone()[0] * PAGE_BYTES
        while self.size() > FULL * most and self._oldest():
            for tier in TIERS:
                [[count]] = self._connection.execute(f"SELECT count(*) FROM {tier.table}")
                self._connection.execute(
                    f"DELETE FROM {tier.table} WHERE time IN (SELECT time FROM {tier.table} ORDER BY time LIMIT ?)",
                    (int(count * GONE_AT_ONCE) + 1,),
                )
            self._see(now, self._means(TIERS[-1], self._rolled[TIERS[-1]], now).values())
            self._forget_series(min(self._oldest(), default=now))

    def _see(self, now: int, moments: Iterable[Moment]) -> None:
        numbers = {number for moment in moments for number in (*moment.groups, *moment.devices)}
        self._connection.executemany(
            "UPDATE series SET seen = max(seen, ?) WHERE id = ?", [(now, number) for number in numbers]
        )

    def _oldest(self) -> list[int]:
        """The times of the oldest moments of tiers that have some."""
        found = [self._connection.execute(f"SELECT min(time) FROM {tier.table}").fetchone()[0] for tier in TIERS]
        return [time for time in found if time is not None]

    def _forget_series(self, before: int) -> None:
        gone = self._connection.execute("DELETE FROM series WHERE seen < ? RETURNING id", (before,)).fetchall()
        if gone:
            numbers = {number for (number,) in gone}
            self._series = {key: number for key, number in self._series.items() if number not in numbers}

    def _last(self, tier: Tier) -> int:
        return int(self._connection.execute(f"SELECT coalesce(max(time), 0) FROM {tier.table}").fetchone()[0])


def _open(path: Path, max_bytes: int) -> sqlite3.Connection:
    try:
        return _opened(path, max_bytes)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: what SQLite says quotes the file
        if isinstance(error, sqlite3.OperationalError):  # locked, a full disk: the file is not to blame
            raise
        logger.warning(
            "history file=%s cannot be read (%s): begun anew, the old one is %s.damaged", path, error, path.name
        )
        os.replace(path, path.with_name(f"{path.name}.damaged"))  # noqa: PTH105
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        return _opened(path, max_bytes)


def _opened(path: Path, max_bytes: int) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, timeout=1.0)
    try:
        # One process only, so that the log needs no shared memory and the file may be on any file system.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine may cost the last seconds, no more
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {2 * LOG_PAGES * PAGE_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {max_bytes // PAGE_BYTES}")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, FORMAT):
            raise sqlite3.DatabaseError(f"it is of format {version}, not {FORMAT}")
        with connection:
            for tier in TIERS:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {tier.table} (time INTEGER PRIMARY KEY, data BLOB)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, device TEXT, name TEXT, seen INTEGER,"
                " UNIQUE (device, name))"
            )
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("it is damaged")
        _check_columns(connection)
        _series(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_columns(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where a table is not the one that this module makes."""
    tables = {tier.table: ["time", "data"] for tier in TIERS} | {"series": ["id", "device", "name", "seen"]}
    for table, columns in tables.items():
        if [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] != columns:
            raise sqlite3.DatabaseError(f"its table {table} has other columns")


def _series(connection: sqlite3.Connection) -> dict[Key, int]:
    """The numbers of series. Raises sqlite3.DatabaseError where a name is none."""
    found = {}
    # As bytes: Python blames a name that is no UTF-8 on the operation, not on the file.
    for number, *name in connection.execute("SELECT id, CAST(device AS BLOB), CAST(name AS BLOB) FROM series"):
        try:
            device, group = (part.decode() for part in name)
        except (AttributeError, UnicodeDecodeError):
            raise sqlite3.DatabaseError(f"the name of its series {number} is no text") from None
        found[device, group] = number
    return found
