"""Work that may block, beside the event loop: one after the other in a thread, for which nobody waits long."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Aside:
    """One thread, from the first work on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Has ``work`` done some time; returns at once. It must not raise."""
        self._work.put(work)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)  # it may hang for ever
            with contextlib.suppress(RuntimeError):  # the system allows no more threads: the next work may find one
                thread.start()
                self._thread = thread

    async def settle(self, patience: float) -> bool:
        """Waits for the work so far, ``patience`` seconds at most; whether it is done."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set)

        self.do(tell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await done.wait()
        return done.is_set()

    def _run(self) -> None:
        while True:
            self._work.get()()
