"""The devices that the driver shows: what it says of each, and what the native server was told of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gemlet.devices.device import DeviceInfo, uuid_bytes
from gemlet.errors import DeviceError
from gemlet.model import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.daemon.inventory import Inventory
    from gemlet.daemon.native import Server

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # for a driver to answer somebody who waits


class KnownDevices:
    """``problem`` says why there are none, while there are none."""

    def __init__(self, server: Server, inventory: Inventory) -> None:
        self._server = server
        self._inventory = inventory
        self.by_uuid: dict[bytes, DeviceInfo] = {}
        self.problem = "the driver has not answered yet"
        self._told: dict[bytes, tuple[int, str, int | None, int]] = {}
        self._specs: tuple[DeviceSpec, ...] = ()
        self._policy = ""

    def __len__(self) -> int:
        return len(self.by_uuid)

    def listed(self) -> list[DeviceInfo]:
        """Those that the driver has shown so far."""
        return list(self.by_uuid.values())

    def seem_busy(self) -> bool:
        """Whether one was busy when the driver was last asked."""
        return any(device.utilization for device in self.by_uuid.values())

    def configure(self, specs: Sequence[DeviceSpec], policy: str) -> None:
        """``policy``: of devices whose own settings name none."""
        self._specs, self._policy = tuple(specs), policy
        for device in self.by_uuid.values():
            self._tell(device)

    async def find(self) -> bool:
        """Asks the driver. False: it does not answer, and what it said before stays."""
        try:
            found = await asyncio.to_thread(self._inventory.devices)
        except DeviceError as error:
            if not self.by_uuid:
                logger.debug("devices: %s", error)  # a client's attach makes its device known
                self.problem = error.message
            return False
        self.problem = "the driver reports no device"
        self.by_uuid = {uuid_bytes(device.uuid): device for device in found}
        for device in found:
            self._tell(device)
        return True

    async def find_first(self) -> None:
        """Asks the driver again if it has shown none so far: it may have come up this moment."""
        if not self.by_uuid:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.find()

    def have_capacity(self) -> bool:
        """Whether memory of programs is to move on some device."""
        return any(spec.capacity is not None for spec in self._specs)

    def _tell(self, device: DeviceInfo) -> None:
        spec = next((s for s in self._specs if s.uuid == device.uuid or s.index == device.index), DeviceSpec())
        told = (device.index, spec.policy or self._policy, spec.capacity, round(spec.max_wait * 1e9))
        uuid = uuid_bytes(device.uuid)
        if self._told.get(uuid) == told:
            return
        index, policy, capacity, max_wait = told
        try:
            self._server.add_device(uuid, index, policy=policy)
            self._server.set_capacity(uuid, capacity, max_wait)
        except ValueError as error:
            logger.error("device index=%d: %s", index, error)
        self._told[uuid] = told
