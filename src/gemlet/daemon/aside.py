"""Work that may block, beside the event loop: one after the other in a thread, for which nobody waits long.

The thread may hang for ever, in a directory of users or on a disk. So nothing may pile up behind it: work that waits
already is not added again, and who waits for it leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


class Aside:
    """One thread, from the first work on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows
        self._work: deque[Callable[[], None]] = deque()
        self._given = 0
        self._done = 0  # of these
        self._settling: dict[Callable[[], None], int] = {}  # whom to tell, once so much is done

    def do(self, work: Callable[[], None]) -> None:
        """Has ``work`` done some time; returns at once. The same work that waits already is done once."""
        with self._changed:
            if work not in self._work:
                self._work.append(work)
                self._given += 1
                self._changed.notify()
        self._start()

    async def settle(self, patience: float) -> bool:
        """Waits for the work so far, ``patience`` seconds at most; whether it is done."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set)

        self._start()
        with self._changed:
            if self._done >= self._given:
                return True
            self._settling[tell] = self._given
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await done.wait()
        finally:
            with self._changed:
                self._settling.pop(tell, None)
        return done.is_set()

    def __len__(self) -> int:
        """Works that wait, and who waits for them."""
        with self._changed:
            return len(self._work) + len(self._settling)

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        with contextlib.suppress(RuntimeError):  # the system allows no more threads: the next work may find one
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work)
                work = self._work.popleft()
            try:
                work()
            except Exception:  # a defect must cost one work, not all that come
                logger.exception("%s: some work failed", self._name)
            del work  # while it waits it keeps nothing alive
            with self._changed:
                self._done += 1
                told = [tell for tell, wanted in self._settling.items() if wanted <= self._done]
            for tell in told:
                tell()
