"""Serves the DRA driver to the kubelet: two sockets, the driver's own and one in the kubelet's registry."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import grpc

from gemlet.kube import names, services
from gemlet.kube.dra import Registrar

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.kube.dra import DraDriver

LOOK_SECONDS = 1.0
STOP_SECONDS = 1.0


async def keep_served(driver: DraDriver, kubelet: Path, *, look: float = LOOK_SECONDS) -> None:
    """Runs until cancelled. ``kubelet``: its root directory, /var/lib/kubelet. Sockets that vanish are made again."""
    socket = kubelet / "plugins" / names.DRIVER / "dra.sock"
    registry = kubelet / "plugins_registry" / f"{names.DRIVER}-reg.sock"
    while True:
        for path in (socket, registry):
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        plugin, registrar = grpc.aio.server(), grpc.aio.server()
        for version in services.DRA_VERSIONS:
            services.serve(plugin, services.dra_service(version), driver)
        for version in services.HEALTH_VERSIONS:
            services.serve(plugin, f"{version}.DRAResourceHealth", driver)
        services.serve(registrar, "pluginregistration.Registration", Registrar(socket))
        plugin.add_insecure_port(f"unix:{socket}")
        registrar.add_insecure_port(f"unix:{registry}")
        await plugin.start()
        await registrar.start()  # last: the kubelet sees this socket and calls at once
        try:
            while socket.exists() and registry.exists():  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(look)
        finally:
            await registrar.stop(STOP_SECONDS)
            await plugin.stop(STOP_SECONDS)
            for path in (registry, socket):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
