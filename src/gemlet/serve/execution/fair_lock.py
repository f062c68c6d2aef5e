"""A lock that a thread cannot take again, after releasing it, before a thread that waits for it.

threading.Lock lets a thread that runs batch after batch take it again before another has woken up: a partition that
needed the lock of a busy gpu-let for a moment waited for seconds (17 s, measured on an H200).
"""

from __future__ import annotations

import threading


class FairLock:
    """A context manager. The first waiting thread holds the door, so that no other passes it."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
