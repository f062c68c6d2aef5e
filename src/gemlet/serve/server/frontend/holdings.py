"""What the server holds for clients who are slow: bodies that are not complete, answers that are not read. One budget.

Where the budget does not last, the connection goes that has cost most, in bytes times the seconds for which they were
held: a client that sends and reads at its pace never is that one while another hoards. It is one of the peer whose
connections have cost most together: so nobody goes because another has many, each of which costs little, nor because
it comes again and again: what it held in vain counts on, half as much after each `HALF_S`. A large answer
that has no room beside those of clients who read theirs is refused, and asked for again. Time comes from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gemlet.serve.dispatch.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable


PACE = 10e6  # bytes a second at which a client reads an answer that is not cut off for another one
LEAST_S = 1.0  # that any client has for it
HALF_S = 30.0  # half of what a request may take
MOST_OWED = 10_000  # peers
LOOK_PART = 64  # of the budget, that one look for the costliest frees
LARGE_PART = 64  # of the budget: answers below that are never refused


class Holder(Protocol):
    """A connection. ``peer``: whose it is."""

    peer: str

    def evict(self) -> None:
        """Gives up what it holds, and ends."""
        ...


@dataclass(slots=True)
class _Held:
    """most: bytes at once since it began to hold any."""

    nbytes: int
    since: float
    cost: float = 0.0
    most: int = 0

    def cost_at(self, now: float) -> float:
        return self.cost + self.nbytes * (now - self.since)

    def slow_at(self, now: float) -> bool:
        """Whether it has cost more than the same would have cost at PACE."""
        return self.cost_at(now) > self.most * max(LEAST_S, self.most / PACE / 2)


class Holdings:
    """``budget``: bytes of all holders together. ``clock``: seconds."""

    def __init__(self, budget: int, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.total = 0
        self.evicted = 0
        self._clock = clock
        self._held: dict[Holder, _Held] = {}
        self._owed: dict[str, tuple[float, float]] = {}  # by peer, the latest last: what it has cost, and by when

    def hold(self, holder: Holder, nbytes: int) -> None:
        """``holder`` holds so many bytes from now on. May evict others, or itself."""
        now = self._clock()
        held = self._held.get(holder)
        if not nbytes:
            if held is not None:
                self._forget(holder, held)
            return
        if held is None:
            held = self._held[holder] = _Held(0, now)
        self.total += nbytes - held.nbytes
        held.cost, held.nbytes, held.since, held.most = held.cost_at(now), nbytes, now, max(held.most, nbytes)
        while self.total > self.budget and self._held:
            self._make_room(now)

    def _make_room(self, now: float) -> None:
        """The costliest of the costliest peer go: several that hold little, because looking costs time."""
        cost_at = self._cost_at(now)
        of_peers: dict[str, tuple[float, int]] = {}
        for holder in self._held:
            (cost, nbytes), before = cost_at(holder), of_peers.get(holder.peer)
            if before is None:
                before = self.owed(holder.peer, now), 0
            of_peers[holder.peer] = before[0] + cost, before[1] + nbytes
        peer = max(of_peers, key=of_peers.__getitem__)
        theirs = sorted((holder for holder in self._held if holder.peer == peer), key=cost_at)
        enough = self.total - self.budget // LOOK_PART
        self._evict(theirs.pop())
        while theirs and self.total > enough:
            self._evict(theirs.pop())

    def _evict(self, holder: Holder) -> None:
        if holder in self._held:
            self.drop(holder)
            self.evicted += 1
            holder.evict()

    def _cost_at(self, now: float) -> Callable[[Holder], tuple[float, int]]:
        return lambda holder: (self._held[holder].cost_at(now), self._held[holder].nbytes)

    def check(self, nbytes: int) -> None:
        """Whether an answer of so many bytes can be written, for which clients may have to go who are slow.

        One beyond the budget would be cut off, or another that a client reads. Raises Refusal.
        """
        if nbytes > self.budget:
            raise Refusal(
                "failed",
                f"the answer has {nbytes} bytes, and the server keeps at most {self.budget} for its clients: ask for "
                "less, for binary data in place of text, or for shared memory",
            )
        missing = self.total + nbytes - self.budget
        if missing <= 0 or nbytes * LARGE_PART < self.budget:
            return
        now = self._clock()
        slow = sorted((each for each, held in self._held.items() if held.slow_at(now)), key=self._cost_at(now))
        if sum(self._held[each].nbytes for each in slow) < missing:
            message = (
                f"the answer has {nbytes} bytes, and of the {self.budget} that the server keeps for its clients others "
                f"have {self.total}, which they are reading"
            )
            raise Refusal("overload", message, retry_s=1)
        while slow and self.total + nbytes > self.budget:
            self._evict(slow.pop())

    def drop(self, holder: Holder) -> None:
        """It holds nothing any more, and what it held was in vain: the rest of it never came, or never went."""
        held = self._held.get(holder)
        if held is None:
            return
        now = self._clock()
        owed = held.cost_at(now) + self.owed(holder.peer, now)
        self._forget(holder, held)
        self._owed.pop(holder.peer, None)
        self._owed[holder.peer] = owed, now
        if len(self._owed) > MOST_OWED:
            del self._owed[next(iter(self._owed))]

    def owed(self, peer: str, now: float) -> float:
        """Bytes times seconds that connections have cost which are gone."""
        cost, then = self._owed.get(peer, (0.0, now))
        return float(cost * 0.5 ** ((now - then) / HALF_S))

    def _forget(self, holder: Holder, held: _Held) -> None:
        del self._held[holder]
        self.total -= held.nbytes
