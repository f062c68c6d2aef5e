"""The waiting requests of one model, in two lines: those that are trusted, and those that may fail a batch.

In a line the order of service is by priority, then by deadline, then by arrival; first those of a batch that has
failed. No batch is of both lines.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gemlet.serve.dispatch.request import Request


def _urgency(request: Request) -> tuple[bool, int, int, float]:
    return not request.together, request.firsts, request.priority, request.deadline


class Line:
    """``rows`` of all its requests, each of which has one at least. A new request nearly always goes to the end, so
    adding one takes no search; nor does finding those that models asked for, of which there are few."""

    doubted = False

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._asked: dict[int, Request] = {}
        self.rows = 0
        self._first_due = inf  # no deadline of a request that may not be late is earlier
        self.looked = -inf  # when late() last looked at all

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def asked(self) -> list[Request]:
        """Those that models asked for, in the order of service."""
        return sorted(self._asked.values(), key=_urgency)

    @property
    def head(self) -> Request:
        return self._requests[0]

    def add(self, request: Request) -> None:
        queue = self._requests
        self.rows += request.rows
        if request.asked:
            self._asked[id(request)] = request
        if request.deadline < self._first_due and not request.may_be_late:
            self._first_due = request.deadline
        if not queue or _urgency(queue[-1]) <= _urgency(request):
            queue.append(request)
        else:
            insort(queue, request, key=_urgency)

    def fitting(self, limit: int) -> int:
        """Rows of the longest run of requests from the head that has at most ``limit``; the head is always in it."""
        if len(self._requests) == self.rows:  # one row each
            return min(self.rows, limit)
        rows = 0
        for request in self._requests:
            if rows and rows + request.rows > limit:
                break
            rows += request.rows
        return rows

    def take(self, rows: int) -> list[Request]:
        """The requests of fitting(), which said ``rows``."""
        taken = []
        while rows > 0:
            request = self.pop()
            taken.append(request)
            rows -= request.rows
        return taken

    def pop(self) -> Request:
        request = self._requests.popleft()
        self.rows -= request.rows
        if request.asked:
            del self._asked[id(request)]
        return request

    def remove(self, unwanted: Callable[[Request], bool]) -> Iterable[Request]:
        """Takes out the unwanted requests, wherever they stand."""
        out = [request for request in self._requests if unwanted(request)]
        if out:
            self._requests = deque(request for request in self._requests if not unwanted(request))
            self.rows = sum(request.rows for request in self._requests)
            self._asked = {id(request): request for request in self._requests if request.asked}
        return out

    def to_look_at(self, now: float) -> int:
        """How many requests late() would look at, where it is more than the head and those that it takes out."""
        queue = self._requests
        mixed = bool(queue) and (queue[0].priority != queue[-1].priority or queue[0].may_be_late)
        return len(queue) if mixed and now > self._first_due else 0

    def late(self, now: float) -> Iterable[Request]:
        """Takes out those whose deadline has passed. Looks at more than the head only where it must."""
        queue = self._requests
        if queue and (queue[0].priority != queue[-1].priority or queue[0].may_be_late):
            if now <= self._first_due:
                return ()
            self.looked = now
            out = self.remove(lambda request: request.deadline < now and not request.may_be_late)
            self._first_due = min((request.deadline for request in self if not request.may_be_late), default=inf)
            return out
        out = []
        while self._requests and self.head.deadline < now and not self.head.may_be_late:
            out.append(self.pop())
        return out


class DoubtedLine(Line):
    """Of requests that may fail a batch."""

    doubted = True

    def fitting(self, limit: int) -> int:
        if self._requests and not self.head.together:  # nor has one behind it
            return super().fitting(limit)
        rows, together = 0, limit
        for number, request in enumerate(self._requests):
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
