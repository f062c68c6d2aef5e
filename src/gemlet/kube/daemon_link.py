"""The agent's side of the daemon that enforces the shares of this node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gemlet.daemon.connection import Connection
from gemlet.errors import Refused

if TYPE_CHECKING:
    from gemlet.daemon.address import Endpoint
    from gemlet.kube.share import Share


class DaemonLink:
    """Asks one daemon, a connection a question: it may have been another daemon a moment ago.

    Every method raises `DaemonUnreachable` if there is none and `DaemonError` if it does not answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def open(self, share: Share, socket: str, *, device: int | None) -> None:
        """Makes the share's group be exactly what the share says, with its socket. Raises `Refused`."""
        amounts = share.amounts
        limits = {
            "min": amounts.compute / 100,
            "max": amounts.limit / 100,
            "memory": amounts.memory,
            "resident": "none" if amounts.resident is None else amounts.resident,
            "priority": str(amounts.priority),
        }
        await self._call("share", group=share.group, limits=limits, socket=socket, device=device)

    async def remove(self, group: str) -> None:
        """Removes a group; nothing happens if there is none. Raises `Refused` while it has clients."""
        try:
            await self._call("remove", group=group)
        except Refused:
            if group in await self.shares():
                raise

    async def shares(self) -> set[str]:
        """The groups that are shares."""
        status = await self.status()
        return {group["name"] for group in status["groups"] if group["origin"] == "share"}

    async def status(self) -> dict[str, Any]:
        """The status document."""
        status: dict[str, Any] = await self._call("status")
        return status

    async def _call(self, op: str, **arguments: Any) -> Any:
        def ask() -> Any:
            with Connection(self._endpoint) as connection:
                return connection.call(op, **arguments)

        return await asyncio.to_thread(ask)
