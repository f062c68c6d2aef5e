"""The agent's side of the daemon that enforces the shares of this node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from gemlet.daemon import protocol
from gemlet.errors import DaemonError, DaemonUnreachable, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gemlet.daemon.address import Endpoint
    from gemlet.kube.share import Share

SECONDS = 5.0  # for the whole of a question
# Not the command line's hints, since these are read in the event of a pod.
_HINT = "see the log of the container daemon in this node's gemlet-agent pod"


class Terms(NamedTuple):
    """What a share's group is promised, in the daemon's words.

    ``device``: index of the one where its minimum is reserved, None for all of them.
    """

    min: float
    max: float
    memory: int
    resident: int | None
    priority: str
    device: int | None


def terms(share: Share, device: int | None) -> Terms:
    """What the group of a share is to be promised."""
    amounts = share.amounts
    return Terms(
        min=amounts.compute / 100,
        max=amounts.limit / 100,
        memory=amounts.memory,
        resident=amounts.resident,
        priority=str(amounts.priority),
        device=device,
    )


class DaemonLink:
    """Asks one daemon, a connection a question: it may have been another daemon a moment ago.

    Every method raises `DaemonUnreachable` if no daemon answers, and `DaemonError` if its answer is not valid. Nothing
    here takes a thread: the kubelet waits for these answers one pod after the other, and on a busy node each change of
    thread is a wait of its own.
    """

    def __init__(self, endpoint: Endpoint, *, seconds: float = SECONDS) -> None:
        self._endpoint = endpoint
        self._seconds = seconds

    async def open(self, share: Share, socket: str, *, device: int | None) -> None:
        """Makes the share's group be exactly what the share says, with its socket. Raises `Refused`."""
        limits = terms(share, device)._asdict()
        del limits["device"]
        if limits["resident"] is None:
            limits["resident"] = "none"
        await self._call(
            "share", group=share.group, limits=limits, socket=socket, device=device, devices=list(share.gpus)
        )

    async def remove(self, group: str) -> None:
        """Removes a group; nothing happens if there is none. Raises `Refused` while it has clients."""
        try:
            await self._call("remove", group=group)
        except Refused:
            if group in await self.shares():
                raise

    async def shares(self) -> dict[str, Terms]:
        """The groups that are shares, and what each is promised."""
        status = await self.status()
        return {
            group["name"]: Terms(*map(group.get, Terms._fields))
            for group in status["groups"]
            if group["origin"] == "share"
        }

    async def status(self) -> dict[str, Any]:
        """The status document."""
        status: dict[str, Any] = await self._call("status")
        return status

    async def _call(self, op: str, **arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._seconds), self._connected() as (reader, writer):
                # A daemon that turns us away says why before it hangs up: its answer is there even if ours is not sent.
                with contextlib.suppress(BrokenPipeError):
                    writer.write(protocol.encode_request(op, arguments))
                    await writer.drain()
                line = await reader.readline()
        except TimeoutError:
            raise DaemonUnreachable(f"the daemon at {self._endpoint.api} does not answer", hint=_HINT) from None
        except (OSError, ValueError) as error:  # ValueError: longer than any answer is
            raise DaemonError(f"the daemon at {self._endpoint.api} does not answer: {error}", hint=_HINT) from None
        if not line.endswith(b"\n"):
            raise DaemonError(f"the daemon at {self._endpoint.api} closed the connection", hint=_HINT)
        return protocol.decode_reply(line)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._endpoint.api, limit=protocol.MAX_REPLY_BYTES)
        except OSError as error:
            reason = "" if isinstance(error, FileNotFoundError) else f": {error.strerror or error}"
            raise DaemonUnreachable(f"no daemon at {self._endpoint.api}{reason}", hint=_HINT) from None
        try:
            yield reader, writer
        finally:
            writer.transport.abort()  # all is said, or nobody listens: nothing is left to be waited for
            with contextlib.suppress(OSError):
                await writer.wait_closed()
