"""Where a server of either protocol listens, which connections there are, and which end so that others can be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gemlet import peers
from gemlet.serve.server.frontend import limits
from gemlet.serve.server.frontend.holdings import Holdings
from gemlet.serve.server.frontend.limits import Limits
from gemlet.tls_handshakes import Handshakes
from gemlet.turns import Turns

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from gemlet.serve.server.frontend.access import Tokens
    from gemlet.serve.server.frontend.service import Service

SILENCE = (  # after a minute without a word the kernel asks whether the client is there, and twice more
    (socket.TCP_KEEPIDLE, int(limits.SILENT_S)),
    (socket.TCP_KEEPINTVL, int(limits.CLOSE_S / 2)),
    (socket.TCP_KEEPCNT, 2),
)
LOOKING = 10.0  # times as long as a look for connections that could end took, nobody looks for more of these


class Client(Protocol):
    """A connection, as the server sees it. Times are of the loop."""

    active: float  # when it was last heard of
    asked: bool  # whether it has ever begun a request
    peer: str  # whose it is: peers.name()
    began: float | None  # when a request began that is not complete

    @property
    def idle(self) -> bool:
        """Whether no answer is due."""
        ...

    @property
    def unused(self) -> bool:
        """Whether it could end without a loss to anybody."""
        ...

    @property
    def follows(self) -> bool:
        """Whether all it has are answers that go on until somebody ends them."""
        ...

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing can go on before the client sends more."""
        ...

    @property
    def unread_since(self) -> float | None:
        """Since when the client has not read its answers, if no others are due."""
        ...

    def too_slow(self, now: float) -> bool: ...

    def revoke(self) -> None:
        """Ends what goes on without an end by a token that is one no more."""
        ...

    def end_endless(self) -> None:
        """The server ends: so do answers to which nothing is due and that would go on until their client ends them."""
        ...

    def close(self) -> None:
        """Ends it after what is written."""
        ...

    def abort(self) -> None:
        """Ends it at once."""
        ...


class Known(Protocol):
    """What connections of either protocol know of their server."""

    service: Service
    loop: asyncio.AbstractEventLoop
    limits: Limits
    most_connections: int
    tokens: Tokens | None
    holdings: Holdings
    turns: Turns
    connections: set[Any]
    draining: bool

    def enter(self, connection: Any, transport: asyncio.BaseTransport) -> bool:
        """Knows the connection from now on; False if there is no room for it."""
        ...

    def leave(self, connection: Any) -> None:
        """It has ended."""
        ...


class Server:
    """``connection`` makes one. ``tokens``: who may ask; None: everybody who can connect."""

    def __init__(
        self, service: Service, connection: Callable[[Any], Any], given: Limits | None, tokens: Tokens | None
    ) -> None:
        self.service = service
        self.limits = given or Limits()
        self.most_connections = self.limits.connections_of_each()
        self.tokens = tokens
        self.loop = asyncio.get_running_loop()
        self.holdings = Holdings(self.limits.held_bytes, self.loop.time)
        self.turns = Turns(self.loop)
        self.unpacking = service.unpacking
        self.connections: set[Client] = set()
        self._of_peer: Counter[str] = Counter()  # connections
        self._no_room_for = 0  # one of a client with as many connections, or more,
        self._look_again = 0.0  # before this time
        self.draining = False
        self._connection = connection
        self._servers: list[asyncio.Server | Handshakes] = []
        self._files: dict[str, os.stat_result] = {}  # of Unix sockets, by path

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """The port. Raises OSError if it is not to be had."""
        plain = await self.loop.create_server(lambda: self._connection(self), host, port, backlog=1024)
        for each in plain.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as listening:  # uvloop's objects set no options
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its connections have what it has
                for option, value in SILENCE:
                    listening.setsockopt(socket.IPPROTO_TCP, option, value)
        server: asyncio.Server | Handshakes = plain
        if tls is not None:
            sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in plain.sockets]
            plain.close()
            server = Handshakes(
                sockets, tls, lambda: self._connection(self), self.most_connections, begin_s=limits.HEADER_S
            )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def listen_at(self, path: str) -> None:
        """On a Unix socket, for this user and root. Raises OSError."""
        listening = private_socket(path)
        self._files[path] = _file(path)
        self._servers.append(await self.loop.create_unix_server(lambda: self._connection(self), sock=listening))

    def enter(self, connection: Client, transport: asyncio.BaseTransport) -> bool:
        """Knows the connection from now on; False if there is no room for it."""
        connection.peer = peers.name(transport.get_extra_info("socket"))
        self.connections.add(connection)
        self._of_peer[connection.peer] += 1
        return len(self.connections) <= self.most_connections or self._make_room(connection)

    def leave(self, connection: Client) -> None:
        """It has ended. To be called once or more."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._of_peer[connection.peer] -= 1
            if not self._of_peer[connection.peer]:
                del self._of_peer[connection.peer]

    def _make_room(self, newest: Client) -> bool:
        """Ends connections for which no model works, those first that nobody uses; whether there were any.

        Of these, the client with the most loses first, and those first that never asked for anything. Then those go
        that follow the log, or whose client has let the server wait for the longest: for the rest of its request, or to
        read its answers. If all have an answer due, those go of the client with the most that have waited for the
        longest. Nobody loses any for one who has more. Several go at once, because looking costs time.
        """
        began, theirs = self.turns.clock(), self._of_peer[newest.peer]
        if theirs >= self._no_room_for and began < self._look_again:
            return False
        several = max(1, self.most_connections // 64)
        others = [each for each in self.connections if each is not newest and self._of_peer[each.peer] >= theirs]
        unused = [each for each in others if each.unused]
        unused.sort(key=lambda each: (-self._of_peer[each.peer], each.asked, each.active))
        for connection in unused[:several]:
            self.leave(connection)
            connection.close()
            self.loop.call_soon(connection.abort)  # a client that does not take the end, of TLS say, has no files here
        if unused:
            return True
        ending = sorted((each for each in others if each.follows), key=lambda each: each.active)
        if not ending:
            waiting = [(each.began, each) for each in others if each.waits_for_client and each.began is not None]
            waiting += [(each.unread_since, each) for each in others if each.unread_since is not None]
            ending = [each for _, each in sorted(waiting, key=lambda pair: pair[0])]
        if not ending:
            most = max(self._of_peer.values())
            several = min(several, (most - theirs + 1) // 2)
            ending = [each for each in others if self._of_peer[each.peer] == most and several]
            ending.sort(key=lambda each: each.active)
        for connection in ending[:several]:
            self.leave(connection)
            connection.abort()
        if not ending:
            self._no_room_for, now = theirs, self.turns.clock()
            self._look_again = now + LOOKING * (now - began)
        return bool(ending)

    def close_slow(self) -> None:
        """Ends connections whose client is too slow, or has asked for nothing; to be called every second."""
        now = self.loop.time()
        for connection in list(self.connections):
            if connection.too_slow(now):
                connection.abort()
            elif not connection.asked and now - connection.active > limits.SILENT_S and connection.unused:
                connection.close()

    def revoke(self) -> None:
        """Tokens have gone."""
        for connection in list(self.connections):
            connection.revoke()

    def drain(self) -> None:
        """No new connections; the next answer of each is its last. Idle ones stay, so that no request is cut off."""
        self.draining = True
        while self._files:
            _remove(*self._files.popitem())
        for server in self._servers:
            server.close()

    def close_idle(self) -> None:
        """Ends the connections to which no answer is due; a request that is half here is still waited for. What would
        go on until its client ends it, such as a stream, is told that the server ends."""
        for connection in list(self.connections):
            connection.end_endless()
            if connection.idle and connection.began is None:
                connection.close()

    async def close(self) -> None:
        """Ends what is left."""
        self.drain()
        for connection in list(self.connections):
            connection.close()
        for server in self._servers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), 1)


def _file(path: str) -> os.stat_result:
    return Path(path).lstat()


def _remove(path: str, mine: os.stat_result) -> None:
    """The file of a socket, unless another has taken its place. Where it cannot be removed, the next server does it."""
    with contextlib.suppress(OSError):
        if os.path.samestat(_file(path), mine):
            Path(path).unlink()


def private_socket(path: str) -> socket.socket:
    """A Unix socket that only this user may connect to; one that nobody listens on any more is replaced, and no other
    file.

    Raises OSError.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.setblocking(False)  # who listens there may be stopped, with as many as there may be waiting for it
            try:
                other.connect(path)
            except ConnectionRefusedError:  # so it is at a file of another kind
                if not Path(path).is_socket():
                    raise OSError(errno.EEXIST, "a file is there that is not a socket") from None
                Path(path).unlink()
            except FileNotFoundError:
                pass
            except BlockingIOError:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
            else:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        found.bind(path)
        Path(path).chmod(0o600)  # nobody can connect before listen()
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found
