"""What gemlet knows of a device, whatever the source. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gemlet.errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that uses a device. ``memory_used`` is None where the driver hides it, as in some containers.

    ``graphics``: it draws and does not compute.
    """

    pid: int
    memory_used: int | None
    graphics: bool = False


class Device(Protocol):
    """One device, for repeated questions. Every method raises DeviceError if the device no longer answers."""

    @property
    def index(self) -> int:
        """The number nvidia-smi shows: by PCI bus, whatever CUDA_VISIBLE_DEVICES says."""

    @property
    def uuid(self) -> str:
        """The text nvidia-smi shows, such as ``GPU-12345678-...``."""

    @property
    def name(self) -> str: ...

    @property
    def memory_total(self) -> int: ...

    def memory_used(self) -> int | None:
        """By all processes; None where the driver does not tell."""

    def utilization(self) -> float | None:
        """Share of the last second or less in which a kernel ran, 0..1; None where the driver does not tell."""

    def power(self) -> float | None:
        """Watts, as a mean of the last second or less; None where the driver does not tell."""

    def temperature(self) -> float | None:
        """Degrees Celsius; None where the driver does not tell."""

    def clock(self) -> int | None:
        """Of the multiprocessors now, MHz; None where the driver does not tell."""

    def multiprocessors(self) -> int | None:
        """How many it has, whatever fraction of them a program may use; None where the driver does not tell."""

    def processes(self) -> tuple[DeviceProcess, ...]:
        """The processes that use it, by pid; empty where the driver does not tell."""

    def compute_mode(self) -> str | None:
        """default, exclusive-process or prohibited; None where the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """A device at one moment; the fields are those of Device."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int | None
    utilization: float | None
    processes: tuple[DeviceProcess, ...] = ()
    compute_mode: str | None = None
    power: float | None = None
    temperature: float | None = None
    clock: int | None = None
    multiprocessors: int | None = None

    @property
    def simulated(self) -> bool:
        """Whether this is a device of the simulated machine. Whatever is shown of it must say so."""
        return is_simulated(self.name)


def look_at(device: Device) -> DeviceInfo:
    """``device`` as it is now."""
    return DeviceInfo(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        memory_total=device.memory_total,
        memory_used=device.memory_used(),
        utilization=device.utilization(),
        processes=device.processes(),
        compute_mode=device.compute_mode(),
        power=device.power(),
        temperature=device.temperature(),
        clock=device.clock(),
        multiprocessors=device.multiprocessors(),
    )


def is_simulated(name: str) -> bool:
    """Whether a device of this name is simulated: native/sim refuses profiles whose name does not say so."""
    return name.endswith("(simulated)")


def uuid_bytes(uuid: str) -> bytes:
    """The 16 bytes that CUDA and the wire use for ``GPU-12345678-...``. Raises DeviceError if ``uuid`` is not one."""
    try:
        return UUID(uuid.partition("-")[2]).bytes
    except ValueError:
        raise DeviceError(
            f"{uuid!r} is not the UUID of a device", hint="write a UUID that `nvidia-smi -L` shows"
        ) from None
