"""Bytes of requests that wait, by model. Pure.

A model may have as many as are still free. One whose requests pile up so leaves half of all room, two a third, to the
others, and a model of which little waits always has some.
"""

from __future__ import annotations


class WaitingBytes:
    """``most``: of all models together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._of_model: dict[str, int] = {}  # a Counter takes three times as long, of every request

    def of(self, model: str) -> int:
        return self._of_model.get(model, 0)

    def has_room(self, model: str, nbytes: int) -> bool:
        """Whether so many more may wait."""
        return self._of_model.get(model, 0) + nbytes <= self.most - self.total

    def add(self, model: str, nbytes: int) -> None:
        self.total += nbytes
        self._of_model[model] = self._of_model.get(model, 0) + nbytes

    def remove(self, model: str, nbytes: int) -> None:
        self.total -= nbytes
        left = self._of_model.pop(model, 0) - nbytes
        if left:
            self._of_model[model] = left
