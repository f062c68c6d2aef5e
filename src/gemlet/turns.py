"""The event loop's time for what clients send without end: all of them together have a little of it in each turn of the
loop, one peer after another. Those who send little at a time wait for none of them, unless they are so many that they
would keep everybody waiting."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sized


class Abortable(Protocol):
    """A connection."""

    def abort(self) -> None: ...


Its = TypeVar("Its", bound=Abortable)
TURN_S = 0.0002  # of each turn of the loop: about one piece, an answer takes several turns
SMALL_S = 0.01  # of each turn of the loop, for what is small and waits for no turn: some hundred requests
LEAST_S = 1e-6  # that a clock tells apart


class _Queue:
    """What waits, by peer, the next one first. No dict: what is taken out at its beginning leaves a gap, through which
    each look for the first one goes again."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, peer: str, go_on: Callable[[], None]) -> None:
        waiting = self._peers.get(peer)
        if waiting is None:
            waiting = self._peers[peer] = deque()
        waiting.append(go_on)
        self._count += 1

    def in_order(self) -> Iterator[Callable[[], None]]:
        """Takes out what is there now, one of each peer after another."""
        for _ in range(self._count):
            peer, waiting = self._peers.popitem(last=False)
            go_on = waiting.popleft()
            self._count -= 1
            if waiting:  # the peer goes behind the others
                self._peers[peer] = waiting
            yield go_on


class Turns:
    """Work that is divided into pieces. What is asked for in a turn of the loop goes on in the next one at best. To be
    made in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self.clock = time.perf_counter  # uvloop's own knows milliseconds only, in which much is done
        self._small_s = 0.0  # that small pieces took since they had room last
        self._waiting = _Queue()
        self._small = _Queue()
        self._until: float | None = None  # when the time of this turn is over; None: none was asked for
        self._planned = False

    def add(self, peer: str, go_on: Callable[[], None], *, small: bool = False) -> None:
        """Calls ``go_on``, for one piece at least, when it is the peer's turn, and those who came before have had
        theirs. ``small``: it goes as soon as there is room for what is small, before what comes then."""
        (self._small if small else self._waiting).add(peer, go_on)
        self._plan()

    def empty(self, peer: str, things: Sized, take_out: Callable[[], object], *, due: bool = False) -> None:
        """Calls ``take_out`` until there are no ``things``, for as long as a turn lasts; for the rest in later ones.
        ``due``: it is its turn."""
        while things:
            if not due and self.over():
                self.add(peer, partial(self.empty, peer, things, take_out, due=True))
                return
            due = False
            take_out()

    def call(self, begin: Callable[..., None], *args: Any) -> None:
        """Has the loop call what begins such work, from any thread; nothing is called where the loop has ended."""
        if threading.get_ident() == self._thread:
            if not self._loop.is_closed():
                begin(*args)
        else:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(begin, *args)

    def over(self) -> bool:
        """Whether others have their turn now: to be asked before each piece. Where several wait, after each: so those
        who need few do not wait for those who need many."""
        return bool(self._waiting) or self._time_is_over()

    def _time_is_over(self) -> bool:
        now = self.clock()
        if self._until is None:
            self._until = now + TURN_S
            self._plan()
        return now >= self._until

    def end(self) -> None:
        """The time of this turn is over: what was begun in it takes its time later."""
        self._until = self.clock()
        self._plan()

    def has_room(self) -> bool:
        """Whether what is small may be done now, although it is nobody's turn."""
        return self._small_s < SMALL_S

    def took(self, seconds: float) -> None:
        """Something small did."""
        self._small_s += seconds
        if self._small_s > TURN_S:  # what is less needs no end, and that costs another turn of the loop
            self._plan()

    @staticmethod
    def fitting(nbytes: int, seconds: float) -> int:
        """How many bytes are a turn's work, if so many took this long."""
        return int(nbytes * TURN_S / max(seconds, LEAST_S))

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._planned = False
        self._small_s = 0.0
        began = self.clock()
        for go_on in self._small.in_order():
            self._do(go_on)
            now = self.clock()
            self._small_s += now - began
            began = now
            if not self.has_room():
                break
        self._until = self.clock() + TURN_S
        for go_on in self._waiting.in_order():
            self._do(go_on)
            if self._time_is_over():
                break
        if self._waiting or self._small:
            self._plan()
        else:
            self._until = None

    def _do(self, go_on: Callable[[], None]) -> None:
        """One piece. Others have their turns also where it fails, for want of memory say."""
        try:
            go_on()
        except Exception as error:  # noqa: BLE001  it goes to the log, as that of any callback of the loop
            self._loop.call_exception_handler({"message": f"Exception in {go_on!r}", "exception": error})


def or_abort(piece: Callable[[Its], None]) -> Callable[[Its], None]:
    """A connection's piece of work for the loop. Where it fails the connection ends, as the loop ends one where it
    reads: what was taken of its client is lost, and no answer would come."""

    @wraps(piece)
    def whole(connection: Its) -> None:
        try:
            piece(connection)
        except Exception:
            connection.abort()
            raise

    return whole
