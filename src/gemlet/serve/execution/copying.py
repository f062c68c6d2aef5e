"""A thread that copies what is large, so that the event loop does not: what it does holds the interpreter's lock for
moments only, and waits for nobody. Work of the loop's own threads may wait for disks and for other processes."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from gemlet.inference_protocol.tensors import Buffer

    Done = Callable[[Exception | None], None]


class Copying:
    """One piece of work after another. Raises RuntimeError where no thread can be started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._orders: queue.SimpleQueue[tuple[Callable[[], None], Done] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="copying", daemon=True).start()

    def __call__(self, act: Callable[[], None], done: Done) -> None:
        """Calls ``act`` there, and then ``done`` in the event loop, with what was raised."""
        self._orders.put((act, done))

    def close(self) -> None:
        """The thread ends after what it was given."""
        self._orders.put(None)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            while (order := self._orders.get()) is not None:
                act, done = order
                raised = None
                try:
                    act()
                except Exception as error:  # noqa: BLE001  told to who asked
                    raised = error
                self._loop.call_soon_threadsafe(done, raised)
                del order, act, done, raised


def copy(parts: Sequence[Buffer], to: Buffer) -> None:
    """One after the other, without the interpreter's lock where they are large."""
    whole, at = np.frombuffer(to, np.uint8), 0
    for part in parts:
        if len(part):
            whole[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
