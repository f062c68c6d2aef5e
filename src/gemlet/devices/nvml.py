"""Devices as NVML, NVIDIA's management library, describes them.

nvidia-smi is never started: it takes a second and its output is made for people. The binding is imported with the first
question, because most gemlet commands ask none. A function that a device does not support (memory on integrated
devices, utilisation in MIG mode, processes in some containers) gives None or nothing; only a device that does not
answer at all is an error.

The simulated machine comes with an NVML of its own, found by way of LD_LIBRARY_PATH, so nothing here knows of it.
"""

from __future__ import annotations

import importlib
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gemlet.devices.device import DeviceInfo, DeviceProcess, look_at
from gemlet.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_HINTS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "install the NVIDIA driver; `gemlet demo` needs none",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the driver (modprobe nvidia) and see dmesg; `gemlet demo` needs none",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver has been updated since it was loaded: reboot",
    "NVML_ERROR_NO_PERMISSION": "this user may not open /dev/nvidia*; in a container, pass the devices in",
    "NVML_ERROR_GPU_IS_LOST": "the device has fallen off the bus: see dmesg for Xid errors; reboot",
    "NVML_ERROR_RESET_REQUIRED": "stop what uses the device and run nvidia-smi --gpu-reset",
    "NVML_ERROR_NOT_FOUND": "nvidia-smi -L lists the devices there are",
    "NVML_ERROR_INVALID_ARGUMENT": "nvidia-smi -L lists the devices there are",
}
_left_out: dict[int, str] = {}  # what was last logged of a device, by index
_UNKNOWN_HERE = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NO_PERMISSION")


@contextmanager
def session() -> Iterator[Session]:
    """NVML from here to the end of the block. Sessions may nest and run in several threads; only the first takes time.

    Raises DeviceError if there is no driver, or it does not answer.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise DeviceError("the Python package nvidia-ml-py is missing", hint="pip install nvidia-ml-py") from None
    opened = Session(nvml)
    opened.ask("NVML cannot be used", nvml.nvmlInit)
    try:
        yield opened
    finally:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:  # nothing is lost, and the block may be ending with a better error
            logger.debug("nvmlShutdown: %s", error)


class Session:
    """Asks NVML, and turns what it answers into values or DeviceErrors. Made by session()."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def devices(self) -> list[NvmlDevice]:
        """All devices that answer, by index. One that does not is left out and logged: the others can still be used.

        Logged once, and again when it says something else: a daemon asks each second.
        """
        found = []
        for index in range(self.ask("the devices cannot be counted", self.nvml.nvmlDeviceGetCount)):
            try:
                handle = self.ask(f"device {index}", self.nvml.nvmlDeviceGetHandleByIndex, index)
                found.append(NvmlDevice(self, handle, index))
                if _left_out.pop(index, None) is not None:
                    logger.info("device %d answers again", index)
            except DeviceError as error:
                if _left_out.get(index) != error.message:
                    logger.warning("left out: %s (%s)", error.message, error.hint)
                _left_out[index] = error.message
        return found

    def device(self, uuid: str) -> NvmlDevice:
        """The device ``uuid``. Raises DeviceError if there is none."""
        handle = self.ask(f"device {uuid}", self.nvml.nvmlDeviceGetHandleByUUID, uuid)
        return NvmlDevice(self, handle, self.ask(f"device {uuid}", self.nvml.nvmlDeviceGetIndex, handle))

    def driver_version(self) -> str | None:
        """Such as ``580.65.06``."""
        version = self.ask_if_supported("the driver", self.nvml.nvmlSystemGetDriverVersion)
        return None if version is None else _text(version)

    def ask(self, what: str, function: Callable[..., Answer], *arguments: object) -> Answer:
        """``function(*arguments)``; ``what`` starts the message of the DeviceError if NVML refuses."""
        try:
            return function(*arguments)
        except self.nvml.NVMLError as error:
            raise DeviceError(f"{what}: {error}", hint=_HINTS.get(self._name_of(error))) from None

    def ask_if_supported(self, what: str, function: Callable[..., Answer], *arguments: object) -> Answer | None:
        """As ask(), but None if this device, this driver or this user does not have the answer."""
        try:
            return function(*arguments)
        except self.nvml.NVMLError as error:
            if self._name_of(error) in _UNKNOWN_HERE:
                return None
            raise DeviceError(f"{what}: {error}", hint=_HINTS.get(self._name_of(error))) from None

    def _name_of(self, error: Any) -> str:
        for name in (*_HINTS, *_UNKNOWN_HERE):
            if getattr(self.nvml, name) == error.value:
                return name
        return ""


def cores_of_one(major: int, minor: int) -> int:
    """CUDA cores of one multiprocessor: 64 from Volta (7.0) to GA100 (8.0), 128 since; MPS divides none before."""
    return 64 if (7, 0) <= (major, minor) <= (8, 0) else 128


class NvmlDevice:
    """A Device, valid as long as its session. See gemlet.devices.device.Device for the meanings."""

    def __init__(self, session: Session, handle: object, index: int) -> None:
        self._session = session
        self._handle = handle
        self._what = f"device {index}"
        nvml = session.nvml
        self.index = index
        self.uuid = _text(session.ask(self._what, nvml.nvmlDeviceGetUUID, handle))
        self.name = _text(session.ask(self._what, nvml.nvmlDeviceGetName, handle))
        memory = self._memory()
        # An integrated device has no memory of its own: what it can use is the host's.
        self.memory_total: int = (
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if memory is None else memory.total
        )

    def memory_used(self) -> int | None:
        memory = self._memory()
        return None if memory is None else int(memory.used)

    def utilization(self) -> float | None:
        rates: Any = self._ask_if_supported(self._session.nvml.nvmlDeviceGetUtilizationRates)
        return None if rates is None else min(rates.gpu, 100) / 100

    def power(self) -> float | None:
        milliwatts: Any = self._ask_if_supported(self._session.nvml.nvmlDeviceGetPowerUsage)
        return None if milliwatts is None else milliwatts / 1000

    def temperature(self) -> float | None:
        nvml = self._session.nvml
        celsius: Any = self._ask_if_supported(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        return None if celsius is None else float(celsius)

    def clock(self) -> int | None:
        nvml = self._session.nvml
        megahertz: Any = self._ask_if_supported(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        return None if megahertz is None else int(megahertz)

    def multiprocessors(self) -> int | None:
        nvml = self._session.nvml
        cores: Any = self._ask_if_supported(nvml.nvmlDeviceGetNumGpuCores)
        capability: Any = self._ask_if_supported(nvml.nvmlDeviceGetCudaComputeCapability)
        if cores is None or capability is None:
            return None
        count, rest = divmod(int(cores), cores_of_one(*capability))
        return count if count > 0 and rest == 0 else None

    def processes(self) -> tuple[DeviceProcess, ...]:
        nvml = self._session.nvml
        used: dict[int, int | None] = {}
        computing: set[int] = set()
        for function, computes in (
            (nvml.nvmlDeviceGetComputeRunningProcesses, True),
            (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
        ):
            for process in self._ask_if_supported(function) or []:
                # A process that computes and draws is in both lists, each time with all it holds.
                known = used.get(process.pid)
                memory = process.usedGpuMemory
                used[process.pid] = memory if known is None else max(known, memory or 0)
                if computes:
                    computing.add(process.pid)
        return tuple(
            DeviceProcess(pid=pid, memory_used=memory, graphics=pid not in computing)
            for pid, memory in sorted(used.items())
        )

    def compute_mode(self) -> str | None:
        nvml = self._session.nvml
        names = {
            nvml.NVML_COMPUTEMODE_DEFAULT: "default",
            nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive-process",  # what it means since CUDA 8
            nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
            nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive-process",
        }
        mode = self._ask_if_supported(nvml.nvmlDeviceGetComputeMode)
        return names.get(mode)

    def _memory(self) -> Any:
        # The second version does not count what the driver keeps for itself as used. Drivers before 510 lack it.
        nvml = self._session.nvml
        memory = self._ask_if_supported(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
        return memory or self._ask_if_supported(nvml.nvmlDeviceGetMemoryInfo)

    def _ask_if_supported(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._session.ask_if_supported(self._what, function, self._handle, *arguments)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # old versions of the binding give bytes


def device_inventory() -> list[DeviceInfo]:
    """All devices as they are now; takes milliseconds, the first time more. Raises DeviceError without a driver."""
    with session() as opened:
        return [look_at(device) for device in opened.devices()]


def process_memory(uuid: str) -> dict[int, int | None]:
    """Bytes each process holds on the device, by pid; None for those whose use the driver hides. Raises DeviceError.

    The pids are those of the driver's namespace, which is the host's.
    """
    with session() as opened:
        processes = opened.device(uuid).processes()
    return {process.pid: process.memory_used for process in processes}
