"""A launcher starts programs of one group for several devices: a played one, mpirun, torchrun and accelerate.

PyTorch is large and the tests do not install it: GEMLET_TORCH_PYTHON names a Python that has torch and accelerate.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

# What torch.distributed.run does: a process for each device, in sessions of their own, with a copy of the environment.
LAUNCHER = """
import os, subprocess, sys
workers = [
    subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True,
                     env=os.environ | {"LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in range(2)
]
sys.exit(max(worker.wait() for worker in workers))
"""
WORKER = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
rank = int(os.environ.get("LOCAL_RANK") or os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
context, device = ctypes.c_void_p(), ctypes.c_int()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), rank) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
os.write(1, f"{rank} {total.value >> 30}\\n".encode())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture(params=["played", "mpirun", "torchrun", "accelerate"])
def launcher(request, tmp_path):
    """The command line of a launcher of two workers, which print what they see and end when the file `go` is there."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    go = str(tmp_path / "go")
    if request.param == "played":
        return (sys.executable, "-c", LAUNCHER, str(worker), go)
    if request.param == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
        return ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(worker), go)
    python = os.environ.get("GEMLET_TORCH_PYTHON")
    if python is None:
        pytest.skip("GEMLET_TORCH_PYTHON does not name a Python with torch and accelerate")
    modules = {
        "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        "accelerate": ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    }
    # That Python may be of another version than this one, whose modules the tests' PYTHONPATH names.
    return ("env", "-u", "PYTHONPATH", python, "-m", *modules[request.param], str(worker), go)


def test_each_worker_of_a_launcher_has_the_groups_share_of_its_device(gemlet, launcher, tmp_path):
    run = ("run", "-q", "--simulate", "--strict", "--group", "ddp", "--min", "50%", "--memory", "20GiB", "--")
    with subprocess.Popen(
        gemlet.command(*run, *launcher),
        env=gemlet.environment(GEMLET_SIM_DEVICES="2"),
        stdout=subprocess.PIPE,
        text=True,
    ) as launched:
        assert sorted(launched.stdout.readline().strip() for _ in range(2)) == ["0 20", "1 20"]
        devices = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)["devices"]
        (tmp_path / "go").touch()
        launched.communicate(timeout=60)
    assert launched.returncode == 0
    places = [(d["index"], g["name"], g["min"], len(g["clients"])) for d in devices for g in d["groups"]]
    assert places == [(0, "ddp", 0.5, 1), (1, "ddp", 0.5, 1)]
