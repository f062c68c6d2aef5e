"""Programs of one group that a launcher starts for several devices, as torchrun and accelerate do."""

from __future__ import annotations

import json
import subprocess
import sys

# What torch.distributed.run does: a process for each device, in sessions of their own, with a copy of the environment.
LAUNCHER = """
import os, subprocess, sys
workers = [
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                     start_new_session=True, env=os.environ | {"LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in range(2)
]
for worker in workers:
    print(worker.stdout.readline().strip(), flush=True)
sys.stdin.readline()
for worker in workers:
    worker.communicate("go\\n")
"""
WORKER = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, device, rank = ctypes.c_void_p(), ctypes.c_int(), int(os.environ["LOCAL_RANK"])
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), rank) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(rank, total.value >> 30, flush=True)
sys.stdin.readline()
"""


def test_each_worker_of_a_launcher_has_the_groups_share_of_its_device(gemlet):
    run = ("run", "-q", "--simulate", "--group", "ddp", "--min", "50%", "--memory", "20GiB", "--")
    with subprocess.Popen(
        gemlet.command(*run, sys.executable, "-c", LAUNCHER, WORKER),
        env=gemlet.environment(GEMLET_SIM_DEVICES="2"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert sorted(launcher.stdout.readline().strip() for _ in range(2)) == ["0 20", "1 20"]
        devices = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)["devices"]
        launcher.communicate("go\n", timeout=60)
    assert launcher.returncode == 0
    places = [(d["index"], g["name"], g["min"], len(g["clients"])) for d in devices for g in d["groups"]]
    assert places == [(0, "ddp", 0.5, 1), (1, "ddp", 0.5, 1)]
