"""The daemon's log: one line an event, to stderr, never faster than a person or a journal can take."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemlet.config.printable import printable

if TYPE_CHECKING:
    from collections.abc import Hashable


def configure(level: int = logging.INFO, handler: logging.Handler | None = None) -> None:
    """Sends every logger of gemlet to stderr, or to ``handler``. Under systemd the journal adds the time."""
    under_journal = "JOURNAL_STREAM" in os.environ
    form = "%(levelname)s %(message)s" if under_journal else "%(asctime)s %(levelname)s %(message)s"
    handler = handler or logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(form))
    root = logging.getLogger("gemlet")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level)


# Characters of one event: what strangers send may be a review of megabytes, each of whose characters takes 60 bytes and
# a microsecond to be made printable.
MOST_CHARACTERS = 32_768


class PrintableFormatter(logging.Formatter):
    """One line an event, whatever clients call themselves; a traceback keeps its lines. What is long is cut."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        text = record.message
        more = f" ... and {len(text) - MOST_CHARACTERS} characters" if len(text) > MOST_CHARACTERS else ""
        record.message = printable(text[:MOST_CHARACTERS]) + more
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return printable(super().formatException(ei)[-MOST_CHARACTERS:], lines=True)


@dataclass(slots=True)
class _Window:
    began: float
    passed: int = 0
    held_back: int = 0


class Limiter:
    """Lets ``per_minute`` lines pass for each key and counts the rest, so that the next line can tell."""

    MAX_KEYS = 1000

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._windows: dict[Hashable, _Window] = {}

    def allow(self, key: Hashable, *, now: float) -> tuple[bool, int]:
        """Whether to write the line now, and how many were held back before it. ``now`` in seconds."""
        window = self._windows.get(key)
        if window is None or not 0.0 <= now - window.began < 60.0:  # or the clock was set back
            if len(self._windows) >= self.MAX_KEYS:  # names come from clients: forget rather than grow
                self._windows.clear()
            self._windows[key] = _Window(began=now, passed=1)
            return True, window.held_back if window else 0
        if window.passed < self._per_minute:
            window.passed += 1
            return True, 0
        window.held_back += 1
        return False, window.held_back
