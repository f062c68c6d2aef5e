"""NVML through a stand-in for the binding: devices of every temper, and a machine without a driver."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gemlet.devices import nvml
from gemlet.devices.device import DeviceProcess, is_simulated, uuid_bytes
from gemlet.devices.nvml import cores_of_one, device_inventory, process_memory, session
from gemlet.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30
CODES = {
    "UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4, "NOT_FOUND": 6,
    "DRIVER_NOT_LOADED": 9, "LIBRARY_NOT_FOUND": 12, "FUNCTION_NOT_FOUND": 13, "GPU_IS_LOST": 15, "RESET_REQUIRED": 16,
    "LIB_RM_VERSION_MISMATCH": 18,
}  # fmt: skip


class NVMLError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value = CODES[name]


@dataclass
class Card:
    uuid: str
    name: str = "NVIDIA H200"
    total: int = 140 * GIB
    used: int = GIB
    mode: int = 0
    compute: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    utilization: int = 50
    milliwatts: int = 312_500
    fails: dict[str, str] = field(default_factory=dict)  # function -> error


class FakeNvml(ModuleType):
    """The functions of pynvml that gemlet calls, on a list of cards."""

    def __init__(self, *cards: Card, init_error: str | None = None) -> None:
        super().__init__("pynvml")
        for name, code in CODES.items():
            setattr(self, f"NVML_ERROR_{name}", code)
        self.NVMLError = NVMLError
        self.nvmlMemory_v2 = 0x2000028
        self.NVML_TEMPERATURE_GPU = 0
        self.NVML_CLOCK_SM = 1
        for mode, name in enumerate(("DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")):
            setattr(self, f"NVML_COMPUTEMODE_{name}", mode)
        self.cards = cards
        self.init_error = init_error
        self.open = 0

    def _require(self, card: Card | None, function: str) -> None:
        if not self.open:
            raise NVMLError("UNINITIALIZED")
        if card and function in card.fails:
            raise NVMLError(card.fails[function])

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._require(None, "nvmlShutdown")
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        self._require(None, "nvmlDeviceGetCount")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._require(self.cards[index], "handle")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise NVMLError("NOT_FOUND")

    def nvmlDeviceGetIndex(self, card: Card) -> int:
        return self.cards.index(card)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        self._require(card, "uuid")
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> SimpleNamespace:
        self._require(card, "memory_v2" if version else "memory")
        return SimpleNamespace(total=card.total, used=card.used if version else card.used + GIB)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        self._require(card, "utilization")
        return SimpleNamespace(gpu=card.utilization)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        self._require(card, "power")
        return card.milliwatts

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        self._require(card, "temperature")
        return 40 + sensor

    def nvmlDeviceGetNumGpuCores(self, card: Card) -> int:
        self._require(card, "cores")
        return 16896

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> list[int]:
        self._require(card, "capability")
        return [9, 0]

    def nvmlDeviceGetClockInfo(self, card: Card, domain: int) -> int:
        self._require(card, "clock")
        return 1980 + domain

    def nvmlDeviceGetComputeMode(self, card: Card) -> int:
        self._require(card, "mode")
        return card.mode

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        self._require(card, "compute")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.compute.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        self._require(card, "graphics")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.graphics.items()]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    def make(*cards: Card, init_error: str | None = None) -> FakeNvml:
        fake = FakeNvml(*cards, init_error=init_error)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        monkeypatch.setattr(nvml, "_left_out", {})
        return fake

    return make


def test_inventory(machine: Callable[..., FakeNvml]) -> None:
    fake = machine(
        Card("GPU-0", compute={7: GIB, 3: 5}), Card("GPU-1", name="NVIDIA H200 (simulated)", utilization=101)
    )
    first, second = device_inventory()
    assert (first.index, first.uuid, first.name) == (0, "GPU-0", "NVIDIA H200")
    assert (first.memory_total, first.memory_used, first.utilization) == (140 * GIB, GIB, 0.5)
    assert (first.power, first.temperature, first.clock) == (312.5, 40.0, 1981)
    assert first.multiprocessors == 132
    assert first.processes == (DeviceProcess(pid=3, memory_used=5), DeviceProcess(pid=7, memory_used=GIB))
    assert not first.simulated
    assert second.simulated
    assert second.utilization == 1
    assert fake.open == 0


def test_process_memory(machine: Callable[..., FakeNvml]) -> None:
    machine(Card("GPU-0", compute={1: 10, 2: None, 3: None}, graphics={1: 12, 3: 4, 4: 8, 5: None}), Card("GPU-1"))
    assert process_memory("GPU-0") == {1: 12, 2: None, 3: 4, 4: 8, 5: None}
    assert process_memory("GPU-1") == {}


def test_what_is_not_supported_is_left_open(machine: Callable[..., FakeNvml]) -> None:
    asked = ("memory_v2", "memory", "utilization", "power", "temperature", "compute", "graphics")
    unsupported = dict.fromkeys(asked, "NOT_SUPPORTED")
    machine(Card("GPU-0", fails=unsupported))
    (device,) = device_inventory()
    assert (device.memory_used, device.utilization, device.processes) == (None, None, ())
    assert (device.power, device.temperature) == (None, None)
    assert device.memory_total > 0  # the host's


@pytest.mark.parametrize("what", ["cores", "capability"])
def test_multiprocessors_that_the_driver_does_not_tell(machine: Callable[..., FakeNvml], what: str) -> None:
    machine(Card("GPU-0", fails={what: "FUNCTION_NOT_FOUND"}))
    assert device_inventory()[0].multiprocessors is None


@pytest.mark.parametrize(
    ("capability", "cores", "multiprocessors"),
    [((7, 0), 5120, 80), ((7, 5), 2560, 40), ((8, 0), 6912, 108), ((8, 6), 10752, 84), ((9, 0), 16896, 132),
     ((12, 0), 21760, 170)],
)  # fmt: skip
def test_cores_of_a_multiprocessor(capability: tuple[int, int], cores: int, multiprocessors: int) -> None:
    """V100, T4, A100, A40, H100, RTX 5090."""
    assert cores / cores_of_one(*capability) == multiprocessors


def test_compute_modes(machine: Callable[..., FakeNvml]) -> None:
    machine(Card("GPU-0"), Card("GPU-1", mode=2), Card("GPU-2", mode=3), Card("GPU-3", fails={"mode": "NOT_SUPPORTED"}))
    modes = [device.compute_mode for device in device_inventory()]
    assert modes == ["default", "prohibited", "exclusive-process", None]


def test_older_driver_without_the_second_memory_call(machine: Callable[..., FakeNvml]) -> None:
    machine(Card("GPU-0", fails={"memory_v2": "FUNCTION_NOT_FOUND"}))
    assert device_inventory()[0].memory_used == 2 * GIB


def test_one_lost_device_does_not_hide_the_others(
    machine: Callable[..., FakeNvml], caplog: pytest.LogCaptureFixture
) -> None:
    machine(
        Card("GPU-0", fails={"uuid": "GPU_IS_LOST"}), Card("GPU-1", fails={"handle": "NO_PERMISSION"}), Card("GPU-2")
    )
    with caplog.at_level(logging.WARNING):
        assert [device.index for device in device_inventory()] == [2]
    assert "device 0" in caplog.text
    assert "Xid" in caplog.text


def test_a_lost_device_is_logged_when_that_changes(
    machine: Callable[..., FakeNvml], caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon asks each second."""
    card = Card("GPU-0")
    machine(card, Card("GPU-1"))
    with caplog.at_level(logging.INFO):
        for lost in (False, True, True, True, False, False, True):
            card.fails = {"uuid": "GPU_IS_LOST"} if lost else {}
            device_inventory()
    said = [record.getMessage().split()[:2] for record in caplog.records]
    assert said == [["left", "out:"], ["device", "0"], ["left", "out:"]]


def test_device_lost_in_between_is_an_error(machine: Callable[..., FakeNvml]) -> None:
    fake = machine(Card("GPU-0"))
    with session() as opened:
        device = opened.device("GPU-0")
        fake.cards[0].fails["memory_v2"] = "GPU_IS_LOST"
        with pytest.raises(DeviceError, match="device 0: GPU_IS_LOST"):
            device.memory_used()
    assert fake.open == 0


def test_unknown_uuid(machine: Callable[..., FakeNvml]) -> None:
    machine(Card("GPU-0"))
    with pytest.raises(DeviceError, match="GPU-9") as caught:
        process_memory("GPU-9")
    assert "nvidia-smi -L" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("LIBRARY_NOT_FOUND", "install the NVIDIA driver"),
        ("DRIVER_NOT_LOADED", "modprobe"),
        ("LIB_RM_VERSION_MISMATCH", "reboot"),
        ("NO_PERMISSION", "/dev/nvidia"),
    ],
)
def test_no_driver_says_what_to_do(machine: Callable[..., FakeNvml], code: str, hint: str) -> None:
    machine(init_error=code)
    with pytest.raises(DeviceError, match="NVML cannot be used") as caught:
        device_inventory()
    assert hint in (caught.value.hint or "")


def test_no_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match="nvidia-ml-py") as caught:
        device_inventory()
    assert "pip install" in (caught.value.hint or "")


def test_driver_version_of_an_old_binding(machine: Callable[..., FakeNvml]) -> None:
    machine()
    with session() as opened:
        assert opened.driver_version() == "580.65.06"


def test_every_function_and_constant_exists_in_the_real_binding() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in (*vars(FakeNvml), *(f"NVML_ERROR_{code}" for code in CODES), "nvmlMemory_v2"):
        if name.lower().startswith("nvml"):
            assert hasattr(pynvml, name)
    for name, code in CODES.items():
        assert getattr(pynvml, f"NVML_ERROR_{name}") == code


def test_names_and_uuids() -> None:
    assert is_simulated("NVIDIA H200 (simulated)")
    assert not is_simulated("NVIDIA H200")
    assert uuid_bytes("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == bytes(range(16))
    for wrong in ("GPU-1", "", "00010203"):
        with pytest.raises(DeviceError):
            uuid_bytes(wrong)
