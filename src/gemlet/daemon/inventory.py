"""What the daemon asks of the driver: which devices there are and how much each process holds on them.

The answers block for milliseconds, so they are asked for in a thread. A machine whose driver does not answer is a
machine without devices until it does; a device that a client attaches to first is known without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gemlet import paths
from gemlet.devices import nvml

if TYPE_CHECKING:
    from gemlet.devices.device import DeviceInfo


class Inventory(Protocol):
    """Blocking questions; each raises `DeviceError` when the driver does not answer."""

    def devices(self) -> list[DeviceInfo]:
        """All devices, with what is used of them now."""

    def process_memory(self, uuid: str) -> dict[int, int | None]:
        """Bytes each process holds on a device, by pid; None for a process whose use the driver hides."""


class NvmlInventory:
    """The devices NVML shows. With ``simulated`` that is the simulated machine's NVML, whatever driver there is."""

    def __init__(self, *, simulated: bool = False) -> None:
        """Raises GemletError if the simulated machine is not built."""
        self._open = contextlib.ExitStack()
        self._opening = threading.Lock()
        self._opened = False
        if simulated:
            # Code that loads libnvidia-ml.so.1 by name from now on gets the library of that name that is loaded.
            ctypes.CDLL(str(Path(paths.sim_dir(), "libnvidia-ml.so.1")), mode=ctypes.RTLD_GLOBAL)

    def devices(self) -> list[DeviceInfo]:
        self._keep_open()
        return nvml.device_inventory()

    def process_memory(self, uuid: str) -> dict[int, int | None]:
        self._keep_open()
        return nvml.process_memory(uuid)

    def _keep_open(self) -> None:
        # The first nvmlInit takes tens of milliseconds, and is the first again after each last shutdown.
        with self._opening:
            if not self._opened:
                self._open.enter_context(nvml.session())
                self._opened = True
