"""Whose request the daemon answers next: one a turn of the event loop, round robin among users.

A connection whose next request has arrived already would otherwise be answered again and again before anybody else is,
and so would the many connections of one user.
"""

from __future__ import annotations

import asyncio
from collections import deque

LONGEST_REST = 0.25  # seconds; an answer that takes longer waits for something, and keeps nobody else waiting


class AnswerOrder:
    """Hands out turns by uid, while an event loop runs."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}  # who is next comes first
        self._rests: dict[int, float] = {}  # until when, in the loop's time
        self._next: asyncio.Handle | None = None

    async def take(self, uid: int) -> None:
        """Returns when it is ``uid``'s turn, and no other's in the same turn of the loop."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        self._give_soon()
        await turn

    def rest(self, uid: int, seconds: float) -> None:
        """A user who has taken ``seconds`` has no further turn for as long: one has half of the daemon at most."""
        until = asyncio.get_running_loop().time() + min(seconds, LONGEST_REST)
        self._rests[uid] = max(until, self._rests.get(uid, 0.0))

    def _give_soon(self) -> None:
        if isinstance(self._next, asyncio.TimerHandle):
            self._next.cancel()
            self._next = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._rests = {uid: until for uid, until in self._rests.items() if until > now}
        for uid, turns in list(self._waiting.items()):
            while turns and turns[0].done():  # who asked has gone
                turns.popleft()
            if uid in self._rests and turns:
                continue
            del self._waiting[uid]
            if turns:
                turn = turns.popleft()
                if turns:
                    self._waiting[uid] = turns  # behind all others
                turn.set_result(None)  # its task runs before the next `_give`
                break
        else:
            if self._waiting:
                self._next = loop.call_at(min(self._rests[uid] for uid in self._waiting), self._give)
            return
        self._give_soon()
