"""What the server holds for clients who are slow: bodies that are not complete, answers that are not read. One budget.

Where the budget does not last, the connection goes that has cost most, in bytes times the seconds for which they were
held: a client that sends and reads at its pace never is that one while another hoards. Time comes from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gemlet.serve.dispatch.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable


class Holder(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Gives up what it holds, and ends."""
        ...


@dataclass(slots=True)
class _Held:
    nbytes: int
    since: float
    cost: float = 0.0

    def cost_at(self, now: float) -> float:
        return self.cost + self.nbytes * (now - self.since)


class Holdings:
    """``budget``: bytes of all holders together. ``clock``: seconds."""

    def __init__(self, budget: int, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.total = 0
        self.evicted = 0
        self._clock = clock
        self._held: dict[Holder, _Held] = {}

    def hold(self, holder: Holder, nbytes: int) -> None:
        """``holder`` holds so many bytes from now on. May evict others, or itself."""
        now = self._clock()
        held = self._held.get(holder)
        if not nbytes:
            if held is not None:
                self.drop(holder)
            return
        if held is None:
            held = self._held[holder] = _Held(0, now)
        self.total += nbytes - held.nbytes
        held.cost, held.nbytes, held.since = held.cost_at(now), nbytes, now
        while self.total > self.budget and self._held:
            costliest = max(self._held, key=lambda each: (self._held[each].cost_at(now), self._held[each].nbytes))
            self.drop(costliest)
            self.evicted += 1
            costliest.evict()

    def check(self, nbytes: int) -> None:
        """Whether an answer of so many bytes can be written: one beyond the budget would be cut off. Raises Refusal."""
        if nbytes > self.budget:
            raise Refusal(
                "failed",
                f"the answer has {nbytes} bytes, and the server keeps at most {self.budget} for its clients: ask for "
                "less, for binary data in place of text, or for shared memory",
            )

    def drop(self, holder: Holder) -> None:
        """It holds nothing any more."""
        held = self._held.pop(holder, None)
        if held is not None:
            self.total -= held.nbytes
