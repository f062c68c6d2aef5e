"""The waiting requests of one model, in two lines: those that are trusted, and those that may fail a batch.

In a line those of a batch that has failed go first, then those of a higher priority; among equals clients have turns
(turns.py). The most urgent one is the head of its line: it says when a gpu-let must turn to that line at the latest,
and is dropped if it would be late anyway, whosever turn it is. No batch is of both lines.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from gemlet.serve.dispatch.turns import Turns, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.dispatch.turns import Rank


def _urgency(request: Request) -> tuple[Rank, float]:
    return rank_of(request), request.deadline


class Line:
    """``rows`` of all its requests, each of which has one at least. Those that models asked for, of which there are
    few, are found without a search."""

    doubted = False

    def __init__(self) -> None:
        self._turns = Turns()
        self._asked: dict[int, Request] = {}
        self.rows = 0
        self._first_due = inf  # no deadline of a request that may not be late is earlier
        self.looked = -inf  # when late() last looked at all

    def __len__(self) -> int:
        return self._turns.waiting

    def __iter__(self) -> Iterator[Request]:
        """In no order."""
        return iter(self._turns)

    @property
    def asked(self) -> list[Request]:
        """Those that models asked for, the most urgent first."""
        return sorted(self._asked.values(), key=_urgency)

    @property
    def head(self) -> Request:
        """The most urgent one, whosever turn it is."""
        return self._turns.most_urgent

    @property
    def next(self) -> Request:
        """The one that is taken next."""
        return self._turns.next

    @property
    def known(self) -> int:
        """Clients of which it remembers what turns they had."""
        return self._turns.known

    def add(self, request: Request) -> None:
        self.rows += request.rows
        if request.asked:
            self._asked[id(request)] = request
        if request.deadline < self._first_due and not request.may_be_late:
            self._first_due = request.deadline
        self._turns.add(request)

    def fitting(self, limit: int) -> int:
        """Rows of the longest run of requests from the next one that has at most ``limit``; that one is always in
        it."""
        if self._turns.waiting == self.rows:  # one row each
            return min(self.rows, limit)
        rows = 0
        for request in self._turns.in_turn():
            if rows and rows + request.rows > limit:
                break
            rows += request.rows
        return rows

    def take(self, rows: int) -> list[Request]:
        """The requests of fitting(), which said ``rows``."""
        taken = []
        while rows > 0:
            request = self._gone(self._turns.take())
            taken.append(request)
            rows -= request.rows
        return taken

    def pop(self) -> Request:
        """Takes out the head, which was no turn of its client."""
        return self._gone(self._turns.give_up())

    def pass_over(self) -> Request:
        """Takes out the next one, which was no turn of its client."""
        return self._gone(self._turns.pass_over())

    def remove(self, unwanted: Callable[[Request], bool]) -> Iterable[Request]:
        """Takes out the unwanted requests, wherever they stand; the most urgent first."""
        out = sorted(filter(unwanted, self._turns), key=_urgency)
        if out:
            self._turns.remove(out)
            self.rows -= sum([request.rows for request in out])
            for request in out:
                self._asked.pop(id(request), None)
        return out

    def to_look_at(self, now: float) -> int:
        """How many requests late() would look at, where it is more than the head and those that it takes out."""
        return self._turns.waiting if self._mixed and now > self._first_due else 0

    def late(self, now: float) -> Iterable[Request]:
        """Takes out those whose deadline has passed. Looks at more than the head only where it must."""
        if self._mixed:
            if now <= self._first_due:
                return ()
            self.looked = now
            out = self.remove(lambda request: request.deadline < now and not request.may_be_late)
            self._first_due = min((request.deadline for request in self if not request.may_be_late), default=inf)
            return out
        return list(map(self._gone, self._turns.late(now)))

    @property
    def _mixed(self) -> bool:
        """Whether one may be late that is not the head, and the head is not."""
        return self.rows > 0 and (self._turns.mixed or self.head.may_be_late)

    def _gone(self, request: Request) -> Request:
        self.rows -= request.rows
        if request.asked:
            del self._asked[id(request)]
        return request


class DoubtedLine(Line):
    """Of requests that may fail a batch."""

    doubted = True

    def fitting(self, limit: int) -> int:
        if self.rows and not self.head.together:  # nor has one behind it
            return super().fitting(limit)
        rows, together = 0, limit
        for number, request in enumerate(self._turns.in_turn()):
            together = min(together, request.together or limit)
            if number and (number >= together or rows + request.rows > limit):
                break
            rows += request.rows
        return rows


class Queue:
    """Both lines of a model."""

    def __init__(self) -> None:
        self.trusted = Line()
        self.doubted = DoubtedLine()
        self.lines: tuple[Line, Line] = self.trusted, self.doubted

    def __len__(self) -> int:
        return len(self.trusted) + len(self.doubted)

    def __bool__(self) -> bool:  # asked several times for each request
        return self.trusted.rows > 0 or self.doubted.rows > 0

    def __iter__(self) -> Iterator[Request]:
        return chain(self.trusted, self.doubted)

    @property
    def asked(self) -> list[Request]:
        """Those that models asked for."""
        return [request for line in self.lines for request in line.asked]

    def remove(self, unwanted: Callable[[Request], bool]) -> Iterable[Request]:
        """Takes out the unwanted requests, wherever they stand."""
        return [request for line in self.lines if line for request in line.remove(unwanted)]
