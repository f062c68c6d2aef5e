"""GPUs: what sysfs and NVLink say, and the simulated NVML from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gemlet import paths
from gemlet.errors import GemletError
from gemlet.kube import inventory
from gemlet.kube.inventory import numa_node, nvlink_islands, pcie_root
from tests.unit.kube import fakes


def test_the_pcie_root_and_numa_node_come_from_sysfs(tmp_path):
    real = tmp_path / "devices" / "pci0000:17" / "0000:17:01.0" / "0000:18:00.0"
    real.mkdir(parents=True)
    (real / "numa_node").write_text("1\n")
    bus = tmp_path / "bus"
    bus.mkdir()
    (bus / "0000:18:00.0").symlink_to(real)
    assert pcie_root("0000:18:00.0", bus) == "pci0000:17"
    assert numa_node("0000:18:00.0", bus) == 1
    (real / "numa_node").write_text("-1\n")
    assert numa_node("0000:18:00.0", bus) is None
    assert pcie_root("0000:99:00.0", bus) is None
    assert pcie_root(None, bus) is None


def test_gpus_with_links_to_each_other_or_to_one_switch_are_an_island():
    direct = {"a": ("p0", frozenset({"p1"})), "b": ("p1", frozenset({"p0"})), "c": ("p2", frozenset())}
    assert nvlink_islands(direct) == {"a": "a", "b": "a"}
    switched = {name: (f"p{name}", frozenset({"switch"})) for name in "abcd"}
    assert set(nvlink_islands(switched).values()) == {"a"}
    two = {"a": ("p0", frozenset({"p1"})), "b": ("p1", frozenset({"p0"})),
           "c": ("p2", frozenset({"p3"})), "d": ("p3", frozenset({"p2"}))}  # fmt: skip
    assert nvlink_islands(two) == {"a": "a", "b": "a", "c": "c", "d": "c"}


def test_simulated_gpus_are_on_as_many_islands_as_are_asked_for(monkeypatch):
    gpus = [
        replace(gpu, index=number, uuid=f"GPU-{number}", name="H200 (simulated)")
        for number, gpu in enumerate(fakes.GPUS * 4)
    ]
    monkeypatch.setenv("GEMLET_SIM_ISLANDS", "2")
    made = inventory._with_simulated_islands(gpus)
    assert [gpu.nvlink for gpu in made] == ["GPU-0"] * 4 + ["GPU-4"] * 4
    assert [gpu.numa for gpu in made] == [0] * 4 + [1] * 4
    monkeypatch.delenv("GEMLET_SIM_ISLANDS")
    assert inventory._with_simulated_islands(gpus) == gpus


def test_the_simulated_machine_is_read_as_a_gpu_would_be(tmp_path):
    try:
        simulated = paths.sim_dir()
    except GemletError as error:
        pytest.skip(str(error))
    code = (
        "import json; from gemlet.kube import inventory\n"
        "print(json.dumps([(g.device, g.node, g.compute_capability, g.simulated, g.pci) for g in inventory.read()]))"
    )
    environment = os.environ | {
        "GEMLET_SIM_DIR": str(tmp_path),
        "GEMLET_SIM_DEVICES": "2",
        "LD_LIBRARY_PATH": simulated,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second = json.loads(done.stdout)
    assert first[:4] == ["gpu-0", "/dev/nvidia0", [9, 0], True]
    assert second[0] == "gpu-1"
    assert first[4] != second[4]


def test_memory_can_be_offered_more_than_once_where_the_daemon_moves_it():
    gpu = inventory.offered(fakes.GPUS[0], 1.5)
    assert gpu.memory == 120 * fakes.GIB
    assert inventory.offered(gpu, 1) is gpu
    status = {"devices": [{"uuid": fakes.FIRST, "capacity": 2**30}, {"uuid": fakes.SECOND, "capacity": None}]}
    inventory.check_capacity([gpu], status)
    with pytest.raises(inventory.NoCapacity, match="device 1") as caught:
        inventory.check_capacity(fakes.GPUS, status)
    assert "index = 1" in caught.value.hint
