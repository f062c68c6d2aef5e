"""A body that comes piece by piece, in memory of its own.

Memory that grows is copied, or moved, again and again, and the system takes 0.1 ms and more for each MiB that it gets
back: a body of 64 MiB would stop the event loop for 7 ms, when a client leaves as well as when a request has its
answer. So there is much more room than what has come needs, which is no memory before something is there, and it goes
back in turns. A client has room by what it has sent, not by what it says that it will send: room counts where a system
has strict accounts of memory, and huge pages would be 2 MiB of memory for a byte.
"""

from __future__ import annotations

import contextlib
import mmap
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.turns import Turns

PIECE_BYTES = 1 << 20  # that go back at once
LEAST_ROOM = 1 << 20
ROOM_TIMES = 16  # what has come, there is room for: 64 MiB move twice, which takes some 0.1 ms


class LargeBody:
    """Of a ``peer``, whose turn it is when pieces of it go back. ``room``: bytes that it may have at most."""

    __slots__ = ("_memory", "_most")

    def __init__(self, begun: bytes | bytearray, room: int, turns: Turns, peer: str) -> None:
        """Raises MemoryError."""
        self._most = room
        try:
            self._memory = _Memory(self._room_for(len(begun)))
        except OSError:
            raise MemoryError from None
        with contextlib.suppress(OSError):  # a kernel that has no huge pages
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._memory.turns, self._memory.peer = turns, peer
        self.extend(begun)

    def __len__(self) -> int:
        return self._memory.filled

    def extend(self, piece: bytes | bytearray) -> None:
        """What comes next. There is no view yet. Raises MemoryError."""
        begin, end = self._memory.filled, self._memory.filled + len(piece)
        if end > len(self._memory):
            try:
                self._memory.resize(self._room_for(end))
            except OSError:
                raise MemoryError from None
        self._memory[begin:end] = piece
        self._memory.filled = end

    def _room_for(self, nbytes: int) -> int:
        return min(self._most, max(LEAST_ROOM, ROOM_TIMES * nbytes))

    def __getitem__(self, part: slice) -> bytes:
        return self.view()[part].tobytes()

    def view(self) -> memoryview:
        """All that has come. It may live for longer than this."""
        return memoryview(self._memory)[: self._memory.filled]


class _Memory(mmap.mmap):
    turns: Turns | None = None
    peer = ""
    filled = 0  # bytes

    def __new__(cls, room: int) -> _Memory:
        return super().__new__(cls, -1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def __del__(self) -> None:
        """Nobody has it any more, nor a view of it. It lives on until what it held is gone."""
        turns, self.turns = self.turns, None  # once
        if turns is not None and self.filled > PIECE_BYTES:
            turns.call(self._let_go, turns)

    def _let_go(self, turns: Turns) -> None:
        places = list(range(0, self.filled - PIECE_BYTES, PIECE_BYTES))
        turns.empty(self.peer, places, partial(self._drop, places))

    def _drop(self, places: list[int]) -> None:
        self.madvise(mmap.MADV_DONTNEED, places.pop(), PIECE_BYTES)
