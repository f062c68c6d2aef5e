"""Waiting until descriptors can be read or written, whatever their numbers are.

select(2) takes none above 1023, and a daemon of some hundred programs has those. Standard library only.
"""

from __future__ import annotations

import math
import select
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def await_readable(files: Iterable[int | HasDescriptor], seconds: float) -> set[int]:
    """The descriptors of those that have something to read, or whose other side has ended; none after ``seconds``."""
    return _await(files, select.POLLIN, seconds)


def await_writable(file: int | HasDescriptor, seconds: float | None = None) -> bool:
    """Whether it takes something, or never will again; False after ``seconds``."""
    return bool(_await([file], select.POLLOUT, seconds))


def _await(files: Iterable[int | HasDescriptor], events: int, seconds: float | None) -> set[int]:
    waiting = select.poll()
    for file in files:
        waiting.register(file, events)
    milliseconds = None if seconds is None else max(0, math.ceil(seconds * 1000))
    return {descriptor for descriptor, _ in waiting.poll(milliseconds)}
