"""HTTP/1.1: where the server listens, which connections there are, and which end so that others can be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gemlet.serve.server.frontend import limits
from gemlet.serve.server.frontend.holdings import Holdings
from gemlet.serve.server.frontend.http_connection import Connection
from gemlet.serve.server.frontend.limits import Limits

if TYPE_CHECKING:
    import ssl

    from gemlet.serve.server.frontend.access import Tokens
    from gemlet.serve.server.frontend.service import Service

MAX_TARGETS = 4096  # URLs of inference whose parts are remembered
MAX_TARGET_BYTES = 256


class HttpServer:
    """Listens, and knows its connections. ``tokens``: who may ask; None: everybody who can connect."""

    def __init__(self, service: Service, given: Limits | None = None, tokens: Tokens | None = None) -> None:
        self.service = service
        self.limits = given or Limits()
        self.most_connections = self.limits.connections_of_each()
        self.tokens = tokens
        self.loop = asyncio.get_running_loop()
        self.holdings = Holdings(self.limits.held_bytes, self.loop.time)
        self.unpacking = service.unpacking
        self.connections: set[Connection] = set()
        self.draining = False
        self._servers: list[asyncio.Server] = []
        self._targets: dict[bytes, tuple[str, str]] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """The port. Raises OSError if it is not to be had."""
        server = await self.loop.create_server(
            lambda: Connection(self), host, port, backlog=1024, ssl=tls,
            ssl_handshake_timeout=limits.HEADER_S if tls is not None else None,
        )  # fmt: skip
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def listen_at(self, path: str) -> None:
        """On a Unix socket, for this user and root. Raises OSError."""
        self._servers.append(await self.loop.create_unix_server(lambda: Connection(self), sock=private_socket(path)))

    def make_room(self, newest: Connection) -> bool:
        """Ends connections for which no model works, those first that nobody uses; whether there were any.

        Then one goes that follows the log, or the one whose client has let the server wait for the longest: for the
        rest of its request, or to read its answers.
        """
        others = [each for each in self.connections if each is not newest]
        unused = [each for each in others if each.unused]
        unused.sort(key=lambda each: each.active)
        for connection in unused[: max(1, self.most_connections // 64)]:  # several: looking costs time
            self.connections.discard(connection)
            connection.close()
        if unused:
            return True
        followers = [each for each in others if each.follows]
        waiting = [(each.began, each) for each in others if each.waits_for_client and each.began is not None]
        waiting += [(each.unread_since, each) for each in others if each.unread_since is not None]
        if followers:
            min(followers, key=lambda each: each.active).abort()
        elif waiting:
            min(waiting, key=lambda pair: pair[0])[1].abort()
        return bool(followers or waiting)

    def target(self, url: bytes) -> tuple[str, str] | None:
        """(model, version) of an inference URL; None for any other."""
        known = self._targets.get(url)
        if known is not None:
            return known
        parts = url.partition(b"?")[0].decode("latin-1").split("/")
        target = None
        if parts[:3] == ["", "v2", "models"] and parts[-1] == "infer" and len(parts) == 5:
            target = (unquote(parts[3]), "")
        elif parts[:3] == ["", "v2", "models"] and parts[-1] == "infer" and len(parts) == 7 and parts[4] == "versions":
            target = (unquote(parts[3]), unquote(parts[5]))
        if target is not None and len(self._targets) < MAX_TARGETS and len(url) <= MAX_TARGET_BYTES:
            self._targets[url] = target
        return target

    def close_slow(self) -> None:
        """Ends connections whose client is too slow; to be called every second."""
        now = self.loop.time()
        for connection in list(self.connections):
            if connection.too_slow(now):
                connection.abort()

    def drain(self) -> None:
        """No new connections; the next answer of each is its last. Idle ones stay, so that no request is cut off."""
        self.draining = True
        for server in self._servers:
            server.close()

    def close_idle(self) -> None:
        """Ends the connections to which no answer is due; a request that is half here is still waited for."""
        for connection in list(self.connections):
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


def private_socket(path: str) -> socket.socket:
    """A Unix socket that only this user may connect to; one that nobody listens on any more is replaced.

    Raises OSError.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            try:
                other.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
            except FileNotFoundError:
                pass
            else:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        found.bind(path)
        Path(path).chmod(0o600)  # nobody can connect before listen()
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found
