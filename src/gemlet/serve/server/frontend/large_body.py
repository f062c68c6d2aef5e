"""A body that comes piece by piece, and whose memory goes back to the system in turns.

The system takes 0.1 ms and more for each MiB that it gets back, so that a body of 64 MiB would stop the event loop for
7 ms, whoever lets it go last: a client that leaves, a request that was answered, one that was refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, SupportsIndex

from gemlet import own_memory

if TYPE_CHECKING:
    from gemlet.turns import Turns

PIECE_BYTES = 1 << 20  # that go back at once


class LargeBody(bytearray):
    """Of a ``peer``, whose turn it is when pieces of it go back."""

    __slots__ = ("_peer", "_turns")

    def __init__(self, begun: bytes | bytearray, turns: Turns, peer: str) -> None:
        self._turns: Turns | None = turns
        self._peer = peer
        super().__init__(begun)

    def __del__(self) -> None:
        """Nobody has it any more, nor a view of it. It lives on until what it held is gone."""
        turns, self._turns = self._turns, None  # once
        if turns is not None and len(self) > PIECE_BYTES:
            turns.call(self._let_go, turns)

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)  # for another process

    def _let_go(self, turns: Turns) -> None:
        places = own_memory.pieces(self, PIECE_BYTES)
        turns.empty(self._peer, places, partial(self._drop, places))

    def _drop(self, places: list[int]) -> None:
        own_memory.drop(places.pop(), PIECE_BYTES)
