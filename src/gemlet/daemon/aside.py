"""Work that may block, beside the event loop: in threads, for which nobody waits long.

A thread may hang for ever, in a directory of users, on a disk, or because a program wants it to. So work is done in
lanes, one after the other, and what hangs holds up its own lane alone. Nothing may pile up behind it: work that waits
already is not added again, and who waits for it leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lane:
    work: deque[Callable[[], None]] = field(default_factory=deque)
    given: int = 0
    done: int = 0  # of these
    settling: dict[Callable[[], None], int] = field(default_factory=dict)  # whom to tell, once so much is done
    runs: bool = False  # it has a thread


class Aside:
    """A thread for each lane that has work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # of what follows
        self._lanes: dict[Hashable, _Lane] = {}

    def do(self, work: Callable[[], None], *, lane: Hashable = None) -> None:
        """Has ``work`` done some time; returns at once. The same work that waits already is done once."""
        with self._lock:
            mine = self._lanes.setdefault(lane, _Lane())
            if work not in mine.work:
                mine.work.append(work)
                mine.given += 1
            self._start(lane, mine)

    async def settle(self, patience: float, *, lane: Hashable = None) -> bool:
        """Waits for the work of ``lane`` so far, ``patience`` seconds at most; whether it is done."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set)

        with self._lock:
            mine = self._lanes.get(lane)
            if mine is None or mine.done >= mine.given:
                return True
            mine.settling[tell] = mine.given
            self._start(lane, mine)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await done.wait()
        finally:
            with self._lock:
                mine.settling.pop(tell, None)
        return done.is_set()

    def waiting(self, lane: Hashable = None) -> int:
        """Works of ``lane`` that nobody has begun."""
        with self._lock:
            return len(self._lanes[lane].work) if lane in self._lanes else 0

    def __len__(self) -> int:
        """Works that wait, and who waits for them."""
        with self._lock:
            return sum(len(lane.work) + len(lane.settling) for lane in self._lanes.values())

    def _start(self, lane: Hashable, mine: _Lane) -> None:
        if mine.runs:
            return
        thread = threading.Thread(target=self._run, args=(lane, mine), name=self._name, daemon=True)
        with contextlib.suppress(RuntimeError):  # the system allows no more threads: the next work may find one
            thread.start()
            mine.runs = True

    def _run(self, lane: Hashable, mine: _Lane) -> None:
        while True:
            with self._lock:
                if not mine.work:
                    mine.runs = False
                    del self._lanes[lane]
                    return
                work = mine.work.popleft()
            try:
                work()
            except Exception:  # a defect must cost one work, not all that come
                logger.exception("%s: some work failed", self._name)
            del work  # while it waits it keeps nothing alive
            with self._lock:
                mine.done += 1
                told = [tell for tell, wanted in mine.settling.items() if wanted <= mine.done]
            for tell in told:
                tell()
