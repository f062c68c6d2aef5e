"""The recorded history of a daemon: a thread of its own writes moments to disk and answers questions about them.

Nothing waits for the disk: what it does not take in time is dropped, and a file or disk that fails turns recording off
until it works again. The daemon goes on without, and its status says why.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.history_moment import DEVICE_COLUMNS, GROUP_COLUMNS, Sums, chosen
from gemlet.daemon.history_store import TIERS, Store, tier_for
from gemlet.daemon.protocol import HISTORY_SCHEMA
from gemlet.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.daemon.history_moment import Column, Values
    from gemlet.daemon.history_store import Key, Tier

logger = logging.getLogger(__name__)

WRITE_SECONDS = 5.0  # between writes: a daemon that is killed loses no more
AGAIN_SECONDS = 60.0  # after a failure
MOST_WAITING = 60  # moments
MOST_INTERVALS = 65_536  # of all series of an answer together
MOST_ROWS = 262_144  # values of series at moments that are read for an answer, where a coarser tier is fine enough
LONGEST_STOP = 5.0  # seconds that the end of the daemon waits for the disk


class RecordedSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One group on one device, or with ``group`` None the device: for each column a value a moment, None if unknown."""

    device: str
    group: str | None
    values: dict[str, list[float | None]]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: `time` has the end of each interval of ``step_s`` seconds, in seconds since 1970.

    kept: None while moments are being recorded, else why they are not.
    """

    schema: int = HISTORY_SCHEMA
    simulated: bool = False
    step_s: int
    time: list[int]
    series: list[RecordedSeries]
    kept: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody wants to know: ``group`` None for all, "" for the devices; ``since`` and ``until`` in seconds since
    1970; at most ``points`` moments; ``columns`` empty for all."""

    group: str | None
    since: float
    until: float
    points: int
    columns: frozenset[str] = frozenset()


class Recorder:
    """``open_store`` is called in the thread. Without `start` it records nothing and refuses questions."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: dict[int, tuple[Mapping[Key, Values], Mapping[Key, Values]]] = {}
        self._lock = threading.Lock()  # of _waiting
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._not_before = 0.0
        self._writing = False

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded now; None if it is."""
        return "it is off" if self._thread is None else self._failure

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)  # a disk may hang for ever
        self._thread.start()

    def stop(self) -> None:
        """Writes what there is, and ends the thread; gives up on a disk that takes longer than `LONGEST_STOP`."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(LONGEST_STOP)
            self._thread = None

    def add(self, at: int, groups: Mapping[Key, Values], devices: Mapping[Key, Values]) -> None:
        """Takes the moment of the second that ended ``at``; returns at once."""
        if self._thread is None:
            return
        with self._lock:
            self._waiting[at] = (groups, devices)
            while len(self._waiting) > MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            due = len(self._waiting) >= WRITE_SECONDS and not self._writing
            self._writing = self._writing or due
        if due:
            self._work.put(self._write)

    async def ask(self, question: Question, *, simulated: bool) -> Recorded:
        """The answer, read in the thread. Raises `Refused` while there is no history."""
        if self._thread is None:
            raise Refused("this daemon keeps no history", hint="restart it without --no-history")
        answer: concurrent.futures.Future[Recorded] = concurrent.futures.Future()

        def read() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(self._read(question, simulated=simulated))
            except Exception as error:  # noqa: BLE001  it is raised where the question was asked
                answer.set_exception(error)

        self._work.put(read)
        return await asyncio.wrap_future(answer)

    # --- in the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._write()  # opens the file
        while (work := self._work.get()) is not None:
            work()
        self._not_before = 0.0
        self._write()
        if self._store is not None:
            self._store.close()

    def _write(self) -> None:
        with self._lock:
            moments, self._waiting = self._waiting, {}
            self._writing = False
        if time.monotonic() < self._not_before:
            return
        try:
            if self._store is None:
                self._store = self._open_store()
            self._store.add(moments)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return
        except Exception as error:  # the thread goes on: without it everybody who asks would wait for ever
            logger.exception("history: this is a defect")
            self._failed(error)
            return
        if self._failure is not None:
            logger.info("history: it is recorded again")
        self._failure = None

    def _failed(self, error: Exception) -> None:
        if self._failure is None:
            logger.warning("history: not recorded, and the daemon goes on without: %s", error)
        self._failure = str(error)
        self._not_before = time.monotonic() + AGAIN_SECONDS
        if not isinstance(error, sqlite3.OperationalError) and self._store is not None:  # the file is damaged
            self._store.close()
            self._store = None

    def _read(self, question: Question, *, simulated: bool) -> Recorded:
        self._write()
        if self._store is None:
            raise Refused(f"there is no history: {self._failure}", hint="read the daemon's log")
        try:
            return answer(self._store, question, simulated=simulated, kept=self._failure)
        except sqlite3.Error as error:
            raise Refused(f"the history cannot be read: {error}", hint="read the daemon's log") from None


def answer(store: Store, question: Question, *, simulated: bool = False, kept: str | None = None) -> Recorded:
    """What ``store`` has to say. Raises sqlite3.Error."""
    until, now = max(question.until, question.since + 1), time.time()
    keys = store.series()
    wanted = {n for n, (_, name) in keys.items() if question.group is None or question.group == name}
    points = max(1, min(question.points, MOST_INTERVALS // max(1, len(wanted))))
    apart = max(1, round((until - question.since) / points))
    tier = _tier(tier_for(now - question.since), apart, (until - question.since) * len(wanted))
    step = -(-apart // tier.step) * tier.step
    first, last = int(question.since) // step + 1, -(-int(until) // step)
    times = [number * step for number in range(first, last + 1)]
    groups, devices = chosen(GROUP_COLUMNS, question.columns), chosen(DEVICE_COLUMNS, question.columns)
    sums: dict[int, Sums] = {}
    weights = [0.0] * len(times)  # seconds of moments
    for at, moment in store.moments(tier, times[0] - step, times[-1], wanted, question.columns):
        place = -(-at // step) - first
        weight = min(tier.step, max(1.0, now - (at - tier.step)))  # the last moment may not be over
        weights[place] += weight
        for columns, rows in ((groups, moment.groups), (devices, moment.devices)):
            for number, values in rows.items():
                if number not in sums:
                    sums[number] = Sums(columns, len(times))
                sums[number].add(values, place, weight)
    series = [
        RecordedSeries(
            device=keys[number][0],
            group=keys[number][1] or None,
            values=_columns(sums[number], weights, groups if keys[number][1] else devices),
        )
        for number in sorted(sums, key=keys.__getitem__)
    ]
    return Recorded(simulated=simulated, step_s=step, time=times, series=series, kept=kept)


def _tier(finest: Tier, apart: int, rows: float) -> Tier:
    """The one to read for points that are ``apart`` seconds: with ``rows`` at one a second, a coarser one if many."""
    found = finest
    for tier in TIERS[TIERS.index(finest) + 1 :]:
        if rows / found.step > MOST_ROWS and tier.step <= apart:
            found = tier
    return found


def _columns(sums: Sums, weights: Sequence[float], columns: Sequence[Column]) -> dict[str, list[float | None]]:
    absent = tuple(0.0 if column.rate else None for column in columns)
    nothing = (None,) * len(columns)
    table = [
        sums.mean(place, weight) if sums.seen(place) else absent if weight else nothing
        for place, weight in enumerate(weights)
    ]
    return {
        column.name: [None if value is None else round(value, 4) for value in values]
        for column, values in zip(columns, zip(*table, strict=True), strict=True)
        if any(values) or not column.name.startswith("waits ")
    }
