"""The status of a machine without a daemon: its devices, and every program on them, as the driver tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.daemon.audit import Audit, named
from gemlet.daemon.processes import sees_the_drivers_pids
from gemlet.daemon.programs import look
from gemlet.daemon.status import DeviceStatus, Status
from gemlet.devices import nvml
from gemlet.errors import DeviceError
from gemlet.model import AuditSpec

if TYPE_CHECKING:
    from gemlet.daemon.audit import Outsider
    from gemlet.devices.device import DeviceInfo
    from gemlet.errors import GemletError

FOREIGN_PIDS = "the driver's pids mean nothing in this container, so no program is shown"


def read_status(missing: GemletError) -> Status:
    """Devices and programs; ``missing`` is why there is no daemon. What cannot be found out is in `problem`."""
    problems, devices, outside = [missing.message], [], []
    try:
        devices = nvml.device_inventory()
    except DeviceError as error:
        problems.append(f"no devices: {error.message}")
    if devices and sees_the_drivers_pids():
        outside = programs(devices)
    elif devices:
        problems.append(FOREIGN_PIDS)
    return Status(
        simulated=any(device.simulated for device in devices),
        daemon=None,
        devices=tuple(map(_device, devices)),
        groups=(),
        events=(),
        outside=tuple(outside),
        problem="; ".join(problems),
    )


def programs(devices: list[DeviceInfo]) -> list[Outsider]:
    """Every program on ``devices``: without a daemon all are outside. Pids must mean here what they mean to NVML."""
    found, _ = Audit(acts=False).look(devices, (), AuditSpec(), now=0.0)
    return [named(who, look(who.pid)) for who in found]


def _device(device: DeviceInfo) -> DeviceStatus:
    return DeviceStatus(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        policy="",
        memory_total=device.memory_total,
        memory_used=device.memory_used,
        utilization=device.utilization,
        share={},
        groups=(),
        power=device.power,
        temperature=device.temperature,
        clock=device.clock,
    )
