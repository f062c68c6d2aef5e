"""What waits in a line, by whose it is: clients have turns. Pure.

A turn is worth one row. The next request is of the client that had the fewest turns since it has waited, and of those
that had as many, the one whose deadline is the earliest. Who begins to wait has had as many as the one that is served
then, so nobody saves turns up; and who has nothing that waits for a moment has had the turns that it had. Of one
client's requests the earlier deadline goes first, and of equal ones the earlier arrival.

Requests of a higher rank go before all others, whosever turn it is among these; so turns are counted by rank.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gemlet.serve.dispatch.request import Request

FEW = 64  # of which nobody looks whether they are still needed
Rank = tuple[bool, int, int]


def rank_of(request: Request) -> Rank:
    """The lower one goes first."""
    return not request.together, request.firsts, request.priority


@dataclass(slots=True, eq=False)
class _Waiting:
    """What a client has of a rank: by deadline, then by a number that each request gets. had: its turns."""

    rank: _Rank
    had: int
    requests: deque[tuple[float, int, Request]] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _Rank:
    """had: turns of the client that was served last. waiting: requests. look_at: so many clients, for those gone."""

    rank: Rank
    clients: dict[str, _Waiting] = field(default_factory=dict)
    had: int = 0
    waiting: int = 0
    look_at: int = FEW

    def forget(self) -> None:
        """Clients that would begin again as anybody does."""
        self.clients = {key: each for key, each in self.clients.items() if each.requests or each.had > self.had}
        self.look_at = max(FEW, 2 * len(self.clients))


class Turns:
    """Each step costs the logarithm of the number of clients that wait.

    Two heaps have an entry for the first request of each client, whose turn and which deadline is next. An entry that
    is true no more stays until it comes to the top, or until they are more than those that are; in the first heap, of
    which more than the top is looked at, until they are a quarter of them.
    """

    def __init__(self) -> None:
        self._ranks: dict[Rank, _Rank] = {}
        self._next: list[tuple[Rank, int, float, int, _Waiting]] = []
        self._due: list[tuple[Rank, float, int, _Waiting]] = []
        self._number = 0
        self._standing = 0  # clients that have something that waits
        self.waiting = 0

    def __iter__(self) -> Iterator[Request]:
        """Those of one client after those of another."""
        for rank in self._ranks.values():
            for client in rank.clients.values():
                for _, _, request in client.requests:
                    yield request

    @property
    def known(self) -> int:
        """Clients, those by rank."""
        return sum(len(rank.clients) for rank in self._ranks.values())

    @property
    def mixed(self) -> bool:
        """Whether what waits is of several ranks."""
        return len(self._ranks) > 1

    def add(self, request: Request) -> None:
        key = rank_of(request)
        rank = self._ranks.get(key)
        if rank is None:
            rank = self._ranks[key] = _Rank(key)
        client = rank.clients.get(request.client)
        if client is None:
            if len(rank.clients) >= rank.look_at:
                rank.forget()
            client = rank.clients[request.client] = _Waiting(rank, rank.had)
        elif not client.requests and client.had < rank.had:
            client.had = rank.had
        if not client.requests:
            self._standing += 1
        self._number += 1
        entry, requests = (request.deadline, self._number, request), client.requests
        if not requests or requests[-1] < entry:
            requests.append(entry)
        else:
            insort(requests, entry)
        self.waiting += 1
        rank.waiting += 1
        if requests[0] is entry:
            self._stand(client)
            if len(self._next) > FEW:  # asked here, for a request is charged for each call
                self._forget()

    @property
    def most_urgent(self) -> Request:
        """Of the highest rank the one whose deadline is the earliest, whosever turn it is."""
        _, _, number, client = self._due[0]
        requests = client.requests
        if requests and requests[0][1] == number:  # nearly always, and asked several times for each batch
            return requests[0][2]
        return self._most_urgent().requests[0][2]

    @property
    def next(self) -> Request:
        """Whose turn it is."""
        return self._whose().requests[0][2]

    def take(self) -> Request:
        """The next one; its client has had that turn."""
        client = self._whose()
        heappop(self._next)
        client.rank.had = client.had
        client.had += client.requests[0][2].rows
        return self._out(client)

    def pass_over(self) -> Request:
        """The next one, without a turn."""
        return self._out(self._whose())

    def give_up(self) -> Request:
        """The most urgent one, without a turn."""
        return self._out(self._most_urgent())

    def late(self, now: float) -> list[Request]:
        """The most urgent ones without a turn, up to one whose deadline has not passed, or that may be late."""
        out: list[Request] = []
        while self.waiting:
            client = self._most_urgent()
            requests, before = client.requests, len(out)
            while requests and requests[0][0] < now and not requests[0][2].may_be_late:
                out.append(requests.popleft()[2])
            if len(out) == before:
                break
            self._fewer(client, len(out) - before)
        return out

    def remove(self, out: Iterable[Request]) -> None:
        """These, without a turn."""
        theirs: dict[_Waiting, set[int]] = {}
        for request in out:
            client = self._ranks[rank_of(request)].clients[request.client]
            theirs.setdefault(client, set()).add(id(request))
        for client, ids in theirs.items():
            client.requests = deque([entry for entry in client.requests if id(entry[2]) not in ids])
            self._fewer(client, len(ids))

    def in_turn(self) -> Iterator[Request]:
        """All in the order in which take() would take them, of which nothing may change meanwhile."""
        if self.waiting:
            self._whose()  # what is at the top is true then
        heap, met = self._next, set[int]()
        ahead = [(*heap[0], 0, 0)] if heap else []  # with its place in the heap, -1 for none, and in its client's
        while ahead:
            rank, had, _, number, client, place, position = heappop(ahead)
            if place >= 0:
                for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                    heappush(ahead, (*heap[below], below, 0))
                if id(client) in met or not _true(client, number, had):
                    continue
                met.add(id(client))
            request = client.requests[position][2]
            yield request
            if position + 1 < len(client.requests):
                due, number, _ = client.requests[position + 1]
                heappush(ahead, (rank, had + request.rows, due, number, client, -1, position + 1))

    def _most_urgent(self) -> _Waiting:
        heap = self._due
        while True:
            _, _, number, client = heap[0]
            if _first(client, number):
                return client
            heappop(heap)

    def _whose(self) -> _Waiting:
        heap = self._next
        while True:
            _, had, _, number, client = heap[0]
            requests = client.requests
            if requests and requests[0][1] == number and client.had == had:
                return client
            heappop(heap)

    def _out(self, client: _Waiting) -> Request:
        request = client.requests.popleft()[2]
        self._fewer(client, 1)
        return request

    def _fewer(self, client: _Waiting, by: int) -> None:
        """So many of its requests are out, of the first ones some."""
        rank = client.rank
        self.waiting -= by
        rank.waiting -= by
        if not client.requests:
            self._standing -= 1
        if not rank.waiting:
            # Nothing of it waits, so nobody has had turns before others. Its clients know it: else both would wait
            # for the collector.
            rank.clients.clear()
            del self._ranks[rank.rank]
            if not self.waiting:
                self._next, self._due = [], []
        else:
            if client.requests:
                self._stand(client)
            self._forget()

    def _stand(self, client: _Waiting) -> None:
        """Its first request is another one now."""
        due, number, _ = client.requests[0]
        rank = client.rank.rank
        heappush(self._next, (rank, client.had, due, number, client))
        heappush(self._due, (rank, due, number, client))

    def _forget(self) -> None:
        """Entries that are true no more, where there are many."""
        if len(self._next) > FEW + self._standing + self._standing // 4:
            self._next = list({id(each[-1]): each for each in self._next if _true(each[-1], each[3], each[1])}.values())
            heapify(self._next)
        if len(self._due) > FEW + 2 * self.waiting:
            self._due = list({id(each[-1]): each for each in self._due if _first(each[-1], each[2])}.values())
            heapify(self._due)


def _first(client: _Waiting, number: int) -> bool:
    return bool(client.requests) and client.requests[0][1] == number


def _true(client: _Waiting, number: int, had: int) -> bool:
    return client.had == had and _first(client, number)
