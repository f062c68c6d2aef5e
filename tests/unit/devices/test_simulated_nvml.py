"""The same questions to the NVML of the simulated machine, in a process of its own because NVML is loaded once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gemlet import paths
from gemlet.errors import GemletError

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import ctypes, json, os
from gemlet.devices.nvml import device_inventory, process_memory

idle = device_inventory()
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
busy = device_inventory()
print(json.dumps({
    "index": [device.index for device in busy],
    "uuids": len({device.uuid for device in busy}),
    "simulated": [device.simulated for device in busy],
    "grown": [after.memory_used - before.memory_used for before, after in zip(idle, busy)],
    "mine": [process_memory(device.uuid).get(os.getpid(), 0) for device in busy],
}))
"""


@pytest.fixture
def simulated_libraries() -> str:
    try:
        return paths.sim_dir()
    except GemletError:
        pytest.skip("the simulated machine is not built: make native")


def test_simulated_machine(simulated_libraries: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "GEMLET_SIM_DIR": str(tmp_path),
        "GEMLET_SIM_DEVICES": "2",
        "LD_LIBRARY_PATH": simulated_libraries,
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["index"] == [0, 1]
    assert seen["uuids"] == 2
    assert seen["simulated"] == [True, True]
    assert seen["mine"][0] == 0
    assert seen["mine"][1] >= 1 << 30
    assert seen["grown"][0] == 0
    assert seen["grown"][1] >= 1 << 30
