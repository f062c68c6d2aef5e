"""Texts that are made for all who ask for them meanwhile, and for no more than a part of the time each: they take time
by the number of models, in which the event loop does nothing else, and clients may ask without end. One of them gets
it in each turn of the loop, since writing it takes time, too."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Whole = TypeVar("Whole")
REST = 9  # times as long as it took, until it is made again


class SharedText:
    """``make`` gives it as it is now. ``clock`` gives seconds."""

    def __init__(self, make: Callable[[], bytes], clock: Callable[[], float] = time.perf_counter) -> None:
        self._make = make
        self._clock = clock
        self._next = 0.0  # by the clock
        self._waiting: dict[asyncio.Future[bytes], None] = {}  # the first first; none is looked for among all
        self._planned = False

    async def text(self) -> bytes:
        """As it is at some time after this was called. Raises what making it does."""
        loop = asyncio.get_running_loop()
        if not self._planned:
            self._planned = True
            loop.call_later(max(0.0, self._next - self._clock()), self._give)
        asked: asyncio.Future[bytes] = loop.create_future()
        self._waiting[asked] = None
        try:
            return await asked
        finally:
            self._waiting.pop(asked, None)

    def _give(self) -> None:
        self._planned = False
        asking = deque(asked for asked in self._waiting if not asked.done())
        self._waiting.clear()
        if not asking:
            return
        began = self._clock()
        try:
            text = self._make()
        except Exception as error:  # noqa: BLE001  it is theirs who asked
            self._tell(asking, partial(_fail, error))
        else:
            self._tell(asking, partial(_answer, text))
        ended = self._clock()
        self._next = ended + REST * (ended - began)

    def _tell(self, asking: deque[asyncio.Future[bytes]], tell: Callable[[asyncio.Future[bytes]], None]) -> None:
        asked = asking.popleft()
        if not asked.done():  # else its client has gone
            tell(asked)
        if asking:
            asked.get_loop().call_soon(self._tell, asking, tell)


def _answer(text: bytes, asked: asyncio.Future[bytes]) -> None:
    asked.set_result(text)


def _fail(error: Exception, asked: asyncio.Future[bytes]) -> None:
    asked.set_exception(error)


class SharedTexts(Generic[Whole]):
    """Those of one whole, such as a service, by what makes them."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._texts: dict[Callable[[Whole], bytes], SharedText] = {}

    async def of(self, make: Callable[[Whole], bytes]) -> bytes:
        """As SharedText.text(). ``make``: a function of a module, one of a few."""
        if make not in self._texts:
            self._texts[make] = SharedText(partial(make, self._whole))
        return await self._texts[make].text()
