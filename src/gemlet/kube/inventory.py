"""The GPUs of this node with the attributes that Kubernetes needs: node number, PCI, NUMA, NVLink.

NVML tells most of it, sysfs the rest. What either does not know is None, and not an error.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.devices import nvml
from gemlet.devices.device import is_simulated
from gemlet.errors import DeviceError, GemletError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYSFS = Path("/sys/bus/pci/devices")
MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """``memory`` is in bytes, ``nvlink`` names the set of GPUs that NVLink connects, None if it connects none."""

    index: int
    uuid: str
    name: str
    memory: int
    minor: int | None = None
    pci: str | None = None
    pcie_root: str | None = None
    numa: int | None = None
    compute_capability: tuple[int, int] | None = None
    nvlink: str | None = None

    @property
    def device(self) -> str:
        """Its name in a ResourceSlice."""
        return f"gpu-{self.index}"

    @property
    def node(self) -> str | None:
        """Its device node."""
        return None if self.minor is None else f"/dev/nvidia{self.minor}"

    @property
    def simulated(self) -> bool:
        return is_simulated(self.name)


class NoCapacity(GemletError):
    """A GPU's memory is offered more than once, and the daemon would not move what does not fit to the host."""


def offered(gpu: Gpu, times: float) -> Gpu:
    """``gpu`` with its memory ``times`` over, in whole MiB."""
    return gpu if times == 1 else replace(gpu, memory=int(gpu.memory * times) >> 20 << 20)


def check_capacity(gpus: Iterable[Gpu], status: Mapping[str, Any]) -> None:
    """Raises NoCapacity unless the daemon's ``status`` document has a capacity for each GPU."""
    kept = {device["uuid"] for device in status["devices"] if device["capacity"] is not None}
    for gpu in gpus:
        if gpu.uuid not in kept:
            raise NoCapacity(
                f"the daemon has no capacity for device {gpu.index}, whose memory is offered more than once",
                hint=f"give gemlet.toml a [[devices]] with index = {gpu.index} and its capacity",
            )


def read() -> list[Gpu]:
    """All GPUs that answer, by index; takes milliseconds. Raises DeviceError without a driver."""
    with nvml.session() as session:
        library = session.nvml
        gpus, links = [], {}
        for device in session.devices():
            what = f"device {device.index}"
            handle = session.ask(what, library.nvmlDeviceGetHandleByUUID, device.uuid)
            pci = session.ask_if_supported(what, library.nvmlDeviceGetPciInfo, handle)
            capability = session.ask_if_supported(what, library.nvmlDeviceGetCudaComputeCapability, handle)
            address = _address(pci)
            links[device.uuid] = (address, _peers(session, what, handle))
            gpus.append(
                Gpu(
                    index=device.index,
                    uuid=device.uuid,
                    name=device.name,
                    memory=device.memory_total,
                    minor=session.ask_if_supported(what, library.nvmlDeviceGetMinorNumber, handle),
                    pci=address,
                    pcie_root=pcie_root(address),
                    numa=numa_node(address),
                    compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
                )
            )
    islands = nvlink_islands(links)
    return _with_simulated_islands([_with_island(gpu, islands) for gpu in gpus])


def pcie_root(address: str | None, sysfs: Path = SYSFS) -> str | None:
    """The PCIe root complex, such as ``pci0000:00``: what resource.kubernetes.io/pcieRoot means."""
    if address is None:
        return None
    with contextlib.suppress(OSError):
        parts = (sysfs / address).resolve(strict=True).parts
        return next((part for part in parts if part.startswith("pci") and ":" in part), None)
    return None


def numa_node(address: str | None, sysfs: Path = SYSFS) -> int | None:
    """The NUMA node; None where the machine has one only."""
    if address is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        number = int((sysfs / address / "numa_node").read_text())
        return number if number >= 0 else None
    return None


def nvlink_islands(links: Mapping[str, tuple[str | None, frozenset[str]]]) -> dict[str, str]:
    """Name of the NVLink island of each GPU that is on one: the smallest UUID of it.

    ``links``: UUID -> own PCI address, PCI addresses at the far ends of its links. GPUs that have a far end in common
    (an NVSwitch) are on one island too.
    """
    reach = {uuid: far | {own} for uuid, (own, far) in links.items() if own is not None and far}
    island = {uuid: uuid for uuid in reach}
    for first in sorted(reach):
        for second in sorted(reach):
            if reach[first] & reach[second]:
                low, high = sorted((island[first], island[second]))
                island = {uuid: low if name == high else name for uuid, name in island.items()}
    return island


def _with_island(gpu: Gpu, islands: Mapping[str, str]) -> Gpu:
    return replace(gpu, nvlink=islands.get(gpu.uuid))


def _with_simulated_islands(gpus: list[Gpu]) -> list[Gpu]:
    # The simulated driver has no NVLink. So many islands, each of consecutive GPUs at a processor of its own.
    count = int(os.environ.get("GEMLET_SIM_ISLANDS", "0"))
    if count < 1 or not all(gpu.simulated for gpu in gpus):
        return gpus
    numbers = [position * count // len(gpus) for position in range(len(gpus))]
    return [
        replace(gpu, nvlink=gpus[numbers.index(number)].uuid, numa=number, pcie_root=f"pci0000:{number:02x}")
        for gpu, number in zip(gpus, numbers, strict=True)
    ]


def _address(pci: Any) -> str | None:
    if pci is None:
        return None
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _peers(session: nvml.Session, what: str, handle: object) -> frozenset[str]:
    library = session.nvml
    found = set()
    for link in range(MAX_LINKS):
        try:
            active = session.ask_if_supported(what, library.nvmlDeviceGetNvLinkState, handle, link)
        except DeviceError:  # it has fewer links
            break
        if active is None:
            break
        if active:
            far = _address(session.ask_if_supported(what, library.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            if far is not None:
                found.add(far)
    return frozenset(found)
