"""Serves the DRA driver to the kubelet: two sockets, the driver's own and one in the kubelet's registry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gemlet.kube import names, rpc, services
from gemlet.kube.dra import Registrar
from gemlet.kube.kubelet_socket import identity

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.kube.dra import DraDriver

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


async def keep_served(driver: DraDriver, kubelet: Path, *, look: float = LOOK_SECONDS) -> None:
    """Runs until cancelled. ``kubelet``: its root directory, /var/lib/kubelet.

    Sockets that vanish, or that another has replaced, are made again. Raises OSError as `keep_registered`.
    """
    served = False
    socket = kubelet / "plugins" / names.DRIVER / "dra.sock"
    registry = kubelet / "plugins_registry" / f"{names.DRIVER}-reg.sock"
    while True:
        answering = [services.dra_service(version) for version in services.DRA_VERSIONS]
        answering += [f"{version}.DRAResourceHealth" for version in services.HEALTH_VERSIONS]
        plugin = rpc.RpcServer(dict.fromkeys(answering, driver))
        registrar = rpc.RpcServer({"pluginregistration.Registration": Registrar(socket)})
        made: dict[Path, object] = {}
        try:
            # The registrar last: the kubelet sees its socket and calls at once.
            for server, path in ((plugin, socket), (registrar, registry)):
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                await server.start(path)
                made[path] = identity(path)
            served = True
            while all(identity(path) == own for path, own in made.items()):  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(look)
        except OSError as error:
            if not served:
                raise
            logger.warning("kubelet driver=%s not served: %s", names.DRIVER, error)  # a full disk, maybe
            await asyncio.sleep(look)
        finally:
            await registrar.stop()
            await plugin.stop()
            for path, own in made.items():
                if identity(path) == own:  # else it is another agent's
                    with contextlib.suppress(OSError):
                        path.unlink()
