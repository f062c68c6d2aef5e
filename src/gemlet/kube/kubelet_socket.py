"""Keeps one device plugin known to the kubelet: served, registered, and both again after a restart of either.

The kubelet empties its directory when it starts and does not announce it, so the directory is checked once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gemlet.kube import rpc, services
from gemlet.kube.protocol import deviceplugin_pb2 as messages

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.kube.device_plugin import DevicePlugin

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
REGISTER_SECONDS = 5.0
KUBELET_SOCKET = "kubelet.sock"


async def keep_registered(plugin: DevicePlugin, directory: Path, *, look: float = LOOK_SECONDS) -> None:
    """Runs until cancelled. ``directory`` is the kubelet's device-plugins directory, ``look`` in seconds.

    Raises OSError if the socket cannot be made the first time; later, what stands in the way may pass."""
    served = False
    socket = directory / f"{plugin.served.resource.replace('/', '-')}.sock"
    while True:
        kubelet = identity(directory / KUBELET_SOCKET)
        if kubelet is None:
            await asyncio.sleep(look)
            continue
        server = rpc.RpcServer({"v1beta1.DevicePlugin": plugin})
        try:
            socket.unlink(missing_ok=True)
            await server.start(socket)  # before it registers: the kubelet calls back at once
        except OSError as error:
            if not served:
                raise
            logger.warning("kubelet resource=%s not served: %s", plugin.served.resource, error)  # a full disk, maybe
            await asyncio.sleep(look)
            continue
        served, own = True, identity(socket)
        try:
            if await _register(plugin, directory, socket.name):
                while own == identity(socket) and kubelet == identity(directory / KUBELET_SOCKET):  # noqa: ASYNC110
                    await asyncio.sleep(look)
                logger.info("kubelet socket=%s is another one", directory / KUBELET_SOCKET)
            else:
                await asyncio.sleep(look)
        finally:
            await server.stop()
            if own == identity(socket):  # else it is another agent's
                with contextlib.suppress(OSError):
                    socket.unlink()


async def _register(plugin: DevicePlugin, directory: Path, endpoint: str) -> bool:
    request = messages.RegisterRequest(
        version=services.DEVICE_PLUGIN_VERSION,
        endpoint=endpoint,
        resource_name=plugin.served.resource,
        options=plugin.options(),
    )
    try:
        kubelet = directory / KUBELET_SOCKET
        await rpc.call(kubelet, "v1beta1.Registration", "Register", request, seconds=REGISTER_SECONDS)
    except rpc.CallFailed as error:
        logger.warning("kubelet resource=%s not registered: %s", plugin.served.resource, error)
        return False
    logger.info("kubelet resource=%s registered", plugin.served.resource)
    return True


def identity(path: Path) -> tuple[int, int, int] | None:
    """Which file that is, None for none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns  # an inode number alone is soon used again
