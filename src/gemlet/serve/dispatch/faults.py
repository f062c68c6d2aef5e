"""Whose requests failed batches lately. Pure: the caller gives the time, in milliseconds.

A batch in which the model raises fails for all that is in it, and costs further runs until it is known of which
request. So the requests of a client that had one at fault share batches with such requests only, for a while.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

DOUBTED_MS = 60_000.0  # after the last fault
MAX_CLIENTS = 10_000  # for each model once; of more, those go whose last fault is the longest ago


class Faults:
    """Of all models of a server. False as long as nothing is known of anybody."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}  # by model and client; the latest at the end

    def __bool__(self) -> bool:
        return bool(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def doubted(self, model: str, client: str, now: float) -> bool:
        """Whether a request of it may be at fault again."""
        return now - self._last.get((model, client), -inf) < DOUBTED_MS

    def failed(self, model: str, client: str, now: float) -> None:
        """The model raised for a request of it alone."""
        last = self._last
        last.pop((model, client), None)
        last[model, client] = now
        while len(last) > MAX_CLIENTS or now - next(iter(last.values())) >= DOUBTED_MS:
            del last[next(iter(last))]

    def forget(self, models: Container[str]) -> None:
        """They were loaded anew: what their old files raised for counts no more."""
        for key in [key for key in self._last if key[0] in models]:
            del self._last[key]
