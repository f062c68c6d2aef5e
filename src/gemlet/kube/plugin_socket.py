"""Serves the DRA driver to the kubelet: two sockets, the driver's own and one in the kubelet's registry."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gemlet.kube import names, rpc, services
from gemlet.kube.dra import Registrar

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.kube.dra import DraDriver

LOOK_SECONDS = 1.0


async def keep_served(driver: DraDriver, kubelet: Path, *, look: float = LOOK_SECONDS) -> None:
    """Runs until cancelled. ``kubelet``: its root directory, /var/lib/kubelet. Sockets that vanish are made again."""
    socket = kubelet / "plugins" / names.DRIVER / "dra.sock"
    registry = kubelet / "plugins_registry" / f"{names.DRIVER}-reg.sock"
    while True:
        for path in (socket, registry):
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        answering = [services.dra_service(version) for version in services.DRA_VERSIONS]
        answering += [f"{version}.DRAResourceHealth" for version in services.HEALTH_VERSIONS]
        plugin = rpc.RpcServer(dict.fromkeys(answering, driver))
        registrar = rpc.RpcServer({"pluginregistration.Registration": Registrar(socket)})
        await plugin.start(socket)
        await registrar.start(registry)  # last: the kubelet sees this socket and calls at once
        try:
            while socket.exists() and registry.exists():  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(look)
        finally:
            await registrar.stop()
            await plugin.stop()
            for path in (registry, socket):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
