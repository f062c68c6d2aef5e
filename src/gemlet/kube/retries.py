"""When what has failed is tried again: after two seconds, then twice as long each time, up to a minute. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

FIRST_SECONDS = 2.0
MOST_SECONDS = 60.0


@dataclass(slots=True)
class _Failure:
    reason: str
    wait: float
    due: float


class Retries:
    """What has failed and has not succeeded since, by name. ``now``: seconds of a clock that goes forwards only."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def failed(self, name: str, reason: str, now: float) -> bool:
        """Takes note of a failure. Returns whether it is news: the first, or for another reason than the last."""
        before = self._failures.get(name)
        wait = FIRST_SECONDS if before is None else min(2 * before.wait, MOST_SECONDS)
        self._failures[name] = _Failure(reason, wait, now + wait)
        return before is None or before.reason != reason

    def succeeded(self, name: str) -> bool:
        """Forgets the failures of ``name``. Returns whether there were any."""
        return self._failures.pop(name, None) is not None

    def keep(self, names: Collection[str]) -> None:
        """Forgets all others."""
        self._failures = {name: failure for name, failure in self._failures.items() if name in names}

    def at_once(self) -> None:
        """Makes all of them due."""
        for failure in self._failures.values():
            failure.due = float("-inf")

    def names(self) -> set[str]:
        """Of all that have failed."""
        return set(self._failures)

    def due(self, now: float) -> set[str]:
        """Those to be tried again."""
        return {name for name, failure in self._failures.items() if failure.due <= now}

    def waiting(self, now: float) -> set[str]:
        """Those to be left alone for now."""
        return self.names() - self.due(now)
