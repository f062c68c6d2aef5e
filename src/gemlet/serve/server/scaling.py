"""Runs as many executors as the load needs: those of devices that no plan uses end, and start again when one will."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.serve.execution.device import Device
    from gemlet.serve.server.fleet import Fleet

logger = logging.getLogger(__name__)


class DeviceScaler:
    """The controller's Scaler for a fleet; its work is done in ``tasks``."""

    def __init__(self, fleet: Fleet, tasks: asyncio.TaskGroup) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self._wanted = len(fleet.all_devices)
        self._one = asyncio.Lock()

    async def scale(self, devices: int) -> None:
        """So many are wanted from now on. Devices of the plan in force stay, whatever their number."""
        self._wanted = devices
        self._tasks.create_task(self._follow(), name=f"scale to {devices} devices")

    async def _follow(self) -> None:
        async with self._one:
            used = {gpu.index for gpu in self._fleet.plan().gpus}
            ranked = sorted(
                self._fleet.all_devices,
                key=lambda device: (not device.parked and not device.alive, device.index not in used, device.index),
            )
            wanted = max(self._wanted, len(used))
            await asyncio.gather(*(self._wake(device) for device in ranked[:wanted] if device.parked))
            for device in ranked[wanted:]:
                if not device.parked:
                    await self._park(device)

    async def _park(self, device: Device) -> None:
        try:
            if await self._fleet.park(device):
                logger.info("device %d rests: no plan uses it", device.index)
        except Exception as error:  # noqa: BLE001  as in _wake()
            logger.error("device %d cannot be ended: %s", device.index, error)

    async def _wake(self, device: Device) -> None:
        try:
            await device.wake()
            logger.info("device %d is started for a plan to come", device.index)
        except Exception as error:  # noqa: BLE001  the others are served on
            logger.error("device %d cannot be started: %s", device.index, error)
