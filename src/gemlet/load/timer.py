"""Wakes up on time by a timerfd: event loops round to a millisecond, which is longer than a batch of a small model."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

CLOCK_MONOTONIC = 1
TFD_ABSTIME = 1
NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class _Spec(ctypes.Structure):
    _fields_ = (("interval", ctypes.c_long * 2), ("value", ctypes.c_long * 2))


class Timer:
    """Sleeps until moments of time.monotonic(); a context manager, inside a running loop."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._due = asyncio.Event()

    def __enter__(self) -> Timer:
        self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._fd, self._expired)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    async def until(self, moment: float) -> None:
        """Returns at ``moment``, or in the next turn of the loop if it has passed."""
        if moment <= time.monotonic():
            await asyncio.sleep(0)
            return
        self._due.clear()
        spec = _Spec((0, 0), (int(moment), int(moment % 1 * 1e9)))
        if self._libc.timerfd_settime(self._fd, TFD_ABSTIME, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._due.wait()

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew between its expiry and now
            return
        self._due.set()
