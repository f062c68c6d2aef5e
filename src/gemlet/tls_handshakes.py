"""TLS: connections are accepted here, since those whose handshake goes on count among those that clients may have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from gemlet import peers
from gemlet.tls_reading import Reading
from gemlet.turns import Turns

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)
ACCEPT_AGAIN_S = 0.1  # where there are no files left
PART = 4  # of the connections that there may be, one of so many may be at its handshake


class Handshakes:
    """Listens as an asyncio.Server does. ``most``: connections that there may be; a part of them may be at their
    handshake, and beyond it the oldest of the peer (`peers.name`) with the most ends. ``begin_s``: seconds for a
    handshake. ``end_s``: seconds for the end of TLS, which takes the client's answer, and for what is still to be
    written then."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext,
        connection: Callable[[], asyncio.Protocol],
        most: int,
        *,
        begin_s: float,
        end_s: float | None = None,
    ) -> None:
        self.sockets = tuple(sockets)
        for each in self.sockets:
            each.setblocking(False)
        self._tls = tls
        self._begin_s = begin_s
        self._end_s = end_s
        self._connection = connection
        self._most = max(1, most // PART)
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(self._loop)
        self._under_way: dict[str, dict[socket.socket, None]] = {}  # by peer, the oldest first
        self._count = 0
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = {self._loop.create_task(self._accept(each)) for each in self.sockets}

    def close(self) -> None:
        """Accepts no more; handshakes that go on end."""
        for task in (*self._accepting, *self._shaking):
            task.cancel()
        for each in self.sockets:
            each.close()

    async def wait_closed(self) -> None:
        await asyncio.wait(self._accepting | self._shaking)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError as error:
                logger.warning("no connection can be accepted: %s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            peer = peers.name(accepted)
            if self._count >= self._most:
                self._end_one()
            self._under_way.setdefault(peer, {})[accepted] = None
            self._count += 1
            task = self._loop.create_task(self._shake(accepted, peer))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)
            # Those that were ended have to end before more are accepted: each has a buffer of 64 KiB,
            # and of those who wait to be accepted, a thousand are there at once.
            while len(self._shaking) > 2 * self._most:
                await asyncio.wait(self._shaking, return_when=asyncio.FIRST_COMPLETED)

    async def _shake(self, accepted: socket.socket, peer: str) -> None:
        try:
            if accepted not in self._under_way.get(peer, {}):
                accepted.close()
                return  # ended before it began
            connection = Reading(
                self._tls, self._connection, self._turns, peer, begin_s=self._begin_s, end_s=self._end_s
            )
            transport, _ = await self._loop.connect_accepted_socket(lambda: connection, accepted)
            try:
                await connection.done
            except asyncio.CancelledError:
                transport.abort()
                raise
        except OSError as error:  # TLS that fails is one
            # Else its buffer, 64 KiB of TLS, waits with the frames for Python's collector.
            error.__traceback__ = None
        finally:
            self._forget(accepted, peer)

    def _end_one(self) -> None:
        peer = max(self._under_way, key=lambda each: len(self._under_way[each]))
        oldest = next(iter(self._under_way[peer]))
        self._forget(oldest, peer)
        with contextlib.suppress(OSError):  # it has ended by itself
            oldest.shutdown(socket.SHUT_RDWR)

    def _forget(self, accepted: socket.socket, peer: str) -> None:
        under_way = self._under_way.get(peer, {})
        if accepted in under_way:
            del under_way[accepted]
            self._count -= 1
            if not under_way:
                del self._under_way[peer]
