"""An executor on another machine: the same messages over TCP, tensors inside them, no shared memory.

Only starting and ending differ: a Placement does that. Batches and replies go between server and executor directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Protocol, cast

from gemlet.serve.execution import protocol
from gemlet.serve.execution.arena import Nowhere
from gemlet.serve.execution.copying import Copying
from gemlet.serve.execution.executor import START_SECONDS, STOP_SECONDS, Executor, ExecutorFailed, Link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.serve.execution.arena import Arena
    from gemlet.serve.execution.backend import BackendOptions
    from gemlet.serve.execution.executor import Asked
    from gemlet.serve.execution.hosting import Endpoint

# A machine that is gone sends nothing: after this many seconds of silence, probes are sent, a second apart.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))
SILENCE_MS = 5000  # for which sent bytes may stay unacknowledged


class Placement(Protocol):
    """One place for an executor's process, on some machine."""

    async def start(self, backend: str, environment: Mapping[str, str]) -> Endpoint:
        """A process that listens. Raises ExecutorFailed."""
        ...

    async def stop(self) -> None:
        """Ends it, and gives the place back."""
        ...


class RemoteExecutor(Executor):
    """``placement`` starts its process; a new RemoteExecutor of the same placement takes its place when it died."""

    def __init__(
        self,
        name: str,
        backend: str,
        options: BackendOptions,
        placement: Placement,
        *,
        environment: Mapping[str, str] | None = None,
        on_ask: Asked | None = None,
    ) -> None:
        super().__init__(name, backend, options, environment=environment, on_ask=on_ask)
        self._placement = placement

    async def start(self) -> None:
        hello: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[0] = hello
        try:
            async with asyncio.timeout(START_SECONDS):
                endpoint = await self._placement.start(self.backend, self._environment)
                transport, _ = await self._loop.create_connection(lambda: Link(self), endpoint.host, endpoint.port)
                self._transport = transport
                self.pid = endpoint.pid
                self._copying = Copying(self._loop)
                self._inputs = cast("Arena", Nowhere())
                _keep_alive(transport.get_extra_info("socket"))
                transport.write(endpoint.token.encode() + protocol.frame(protocol.Begin(self._options)))
                greeting = await hello
        except TimeoutError:
            self._drop()
            raise ExecutorFailed(f"{self.name} did not start within {START_SECONDS:g} s") from None
        except OSError as error:
            self._drop()
            raise ExecutorFailed(f"{self.name} cannot be reached: {error.strerror or error}") from None
        except BaseException:
            self._drop()
            raise
        self.backend, self.note = greeting.backend, greeting.note

    async def close(self, patience_s: float = STOP_SECONDS) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.write(protocol.frame(protocol.Stop()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.died.wait(), patience_s)
        await self._placement.stop()
        self._drop()

    def kill(self) -> None:
        """Its process ends with its connection."""
        if self._transport is not None:
            self._transport.abort()

    async def reap(self) -> int | None:
        return None  # how it ended is known on its machine only


def _keep_alive(connection: socket.socket | None) -> None:
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
