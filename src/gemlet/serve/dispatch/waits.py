"""Which batches wait for others, because their models asked other models, and which of them would wait for ever. Pure.

A batch whose model waits for an answer holds its gpu-let. What it asked waits in a queue for one of the gpu-lets that
serve it, and each of those may be held by a batch that waits as well: for that one in the end, although no model asks
itself. Such batches are *locked*. A batch is not locked if it waits for nothing, or if all that it waits for will be
answered: because it runs in a batch that is not locked, or because one of its gpu-lets is free or has such a batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set

    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.dispatch.gpu_lets import Batch
    from gemlet.serve.dispatch.request import Request

# For a label, each way to get a request of it served: the numbers of the batches, one list for each gpu-let that would
# have to be left. An empty one is a gpu-let that is free.
Ways = list[list[list[int]]]


class Waits:
    """Batches by their numbers, and how many requests of each wait where: by label in a queue, by number in a batch."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Counter[str | int]] = {}
        self._batches: dict[int, Batch] = {}
        self.total = 0  # requests of batches under way that are not answered

    def began(self, batch: Batch) -> None:
        """Its model may ask others."""
        batch.number = next(self._numbers)
        self._waiting[batch.number] = Counter()
        self._batches[batch.number] = batch

    def ended(self, batch: Batch) -> None:
        waiting = self._waiting.pop(batch.number, None)
        if waiting is not None:
            self.total -= waiting.total()
            del self._batches[batch.number]

    def moved(self, call: Call, to: str | int, now: float = 0.0) -> None:
        """What a batch asked waits there now, by label or by number; at "" nowhere, because it is answered. ``now``:
        where that was nowhere or will be."""
        waiting = self._waiting.get(call.parent)
        if waiting is None:
            return
        batch, waited = self._batches[call.parent], bool(waiting)
        if call.awaited_at != "":
            waiting[call.awaited_at] -= 1
            self.total -= 1
            if not waiting[call.awaited_at]:
                del waiting[call.awaited_at]
        call.awaited_at = to
        if to != "":
            waiting[to] += 1
            self.total += 1
        if waiting and not waited:
            batch.waits_since = now
        elif waited and not waiting:
            batch.waited += now - batch.waits_since

    def waits(self, batch: Batch) -> bool:
        """Whether it waits for an answer."""
        return bool(self._waiting.get(batch.number))

    def batch(self, number: int) -> Batch | None:
        """The one under way with this number."""
        return self._batches.get(number)

    def asked(self, request: Request) -> bool:
        """Whether a batch under way asked for it."""
        return request.payload.parent in self._batches

    def family(self, batches: Iterable[Batch]) -> Callable[[Request], bool]:
        """Whether one of these asked for a request, or for what did."""
        numbers = {batch.number for batch in batches if batch.number}

        def asked(request: Request) -> bool:
            look = [request.payload.parent]
            for parent in look:  # and what is added meanwhile
                if parent in numbers:
                    return True
                batch = self._batches.get(parent)
                look += [each.payload.parent for each in batch.requests] if batch is not None else []
            return False

        return asked

    def asks(self, batches: Iterable[Batch], holding: Callable[[str], Iterable[Batch]]) -> Callable[[Request], bool]:
        """Whether one of these waits for a request, or for a batch that does. ``holding``: those for which what is in
        the queue of a label may have to wait."""
        look: list[str | int] = [batch.number for batch in batches if batch.number]
        known = set(look)
        for at in look:  # and what is added meanwhile
            found = self._waiting.get(at, ()) if isinstance(at, int) else [batch.number for batch in holding(at)]
            more = set[str | int](found) - known - {0}
            look += more
            known |= more
        return lambda request: request.payload.parent in known

    def worked(self, batch: Batch, now: float) -> float:
        """Milliseconds for which it has been under way and has waited for no answer."""
        return (batch.waits_since if self.waits(batch) else now) - batch.started - batch.waited

    def locked(self, ways: Callable[[str], Ways]) -> set[int]:
        """The batches that would wait for ever."""
        locked = {number for number, waiting in self._waiting.items() if waiting}
        known: dict[str, Ways] = {}

        def comes(at: str | int) -> bool:
            if isinstance(at, int):
                return at not in locked
            if at not in known:
                known[at] = ways(at)
            return not known[at] or any(all(_left(held, locked) for held in way) for way in known[at])

        while True:
            free = {number for number in locked if all(comes(at) for at in self._waiting[number])}
            if not free:
                return locked
            locked -= free

    def labels(self, batches: Set[int]) -> Iterable[str]:
        """Whose queues these batches wait for."""
        found = {at: None for number in sorted(batches) for at in self._waiting[number] if isinstance(at, str)}
        return list(found)


def _left(held: list[int], locked: Set[int]) -> bool:
    """Whether a gpu-let takes what waits for it one day."""
    return not held or any(number not in locked for number in held)
