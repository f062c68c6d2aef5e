"""The rest of large answers over gRPC, which the library of HTTP/2 gets piece by piece: it copies what it is given."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ngh2 import NGH2Error

from gemlet.serve.server.frontend import limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ngh2 import Connection

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.server.frontend.grpc_wire import Header


@dataclass(slots=True)
class _Waiting:
    """Of a call. ``trailers``: how it ends after that; None: it goes on."""

    pieces: deque[memoryview] = field(default_factory=deque)
    nbytes: int = 0
    trailers: list[Header] | None = None


class Rest:
    """Of all calls of a connection, by their streams."""

    def __init__(self, http: Connection) -> None:
        self.nbytes = 0
        self._http = http
        self._waiting: dict[int, _Waiting] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def of(self, number: int) -> int:
        """Bytes of a call."""
        found = self._waiting.get(number)
        return found.nbytes if found is not None else 0

    def add(self, number: int, pieces: Iterable[Buffer]) -> None:
        """After what the call has here."""
        waiting = self._waiting.setdefault(number, _Waiting())
        for piece in pieces:
            waiting.pieces.append(memoryview(piece))
            waiting.nbytes += len(piece)
            self.nbytes += len(piece)

    def end(self, number: int, trailers: list[Header]) -> None:
        """Of a call that has something here."""
        self._waiting[number].trailers = trailers

    def forget(self, number: int) -> None:
        found = self._waiting.pop(number, None)
        if found is not None:
            self.nbytes -= found.nbytes

    def feed(self) -> bool:
        """Gives the library a piece of each call of which it has less than that; whether there was any."""
        fed = False
        for number, waiting in list(self._waiting.items()):
            try:
                if self._http.queued_body_size(number) < limits.COPY_BYTES:
                    self._give(number, waiting)
                    fed = True
            except NGH2Error:  # the stream has ended, as the library will tell
                self.forget(number)
        return fed

    def _give(self, number: int, waiting: _Waiting) -> None:
        piece = waiting.pieces.popleft()
        given, left = piece[: limits.COPY_BYTES], piece[limits.COPY_BYTES :]
        self._http.send_data(number, given)
        if len(left):
            waiting.pieces.appendleft(left)
        waiting.nbytes -= len(given)
        self.nbytes -= len(given)
        if not waiting.pieces:
            del self._waiting[number]
            if waiting.trailers is not None:
                self._http.send_trailers(number, waiting.trailers)
