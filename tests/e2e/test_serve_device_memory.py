"""CUDA shared memory of `gemlet serve`, on the simulated machine: NVIDIA's client for it in programs of their own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from gemlet import paths
from tests.e2e.serve_process import serving, write_model
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
KITS = ("http", "grpc")
CLIENT = """
import json, os, signal, sys
from importlib import import_module
sys.path.insert(0, ROOT)
from tests.e2e import cuda_runtime
cuda_runtime.install()
import numpy as np
import tritonclient.utils.cuda_shared_memory as shm
from tritonclient.utils import InferenceServerException

kit = import_module(f"tritonclient.{KIT}")
client = kit.InferenceServerClient(URL)
memory = {}

def region(name, values=None, nbytes=0, device=0, told=None):
    memory[name] = shm.create_shared_memory_region(name, nbytes or values.nbytes, device)
    if values is not None:
        shm.set_shared_memory_region(memory[name], [values])
    client.register_cuda_shared_memory(name, shm.get_raw_handle(memory[name]), device, told or nbytes or values.nbytes)

def infer(given, wanted, shape, at=0, to=0):
    nbytes = 4 * int(np.prod(shape))
    x = kit.InferInput("X", shape, "FP32")
    x.set_shared_memory(given, nbytes, offset=at)
    y = kit.InferRequestedOutput("Y")
    y.set_shared_memory(wanted, nbytes, offset=to)
    client.infer("add", [x], outputs=[y])

def known():
    status = client.get_cuda_shared_memory_status()
    regions = status if isinstance(status, list) else status.regions.values()
    return sorted(each["name"] if isinstance(each, dict) else each.name for each in regions)

def refused(words, act, *given, **more):
    try:
        act(*given, **more)
    except InferenceServerException as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")

"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", paths.sim_dir())
    monkeypatch.setenv("GEMLET_SIM_DIR", str(tmp_path / "machine"))
    monkeypatch.setenv("GEMLET_SIM_DEVICES", "2")


@pytest.fixture
def server(tmp_path, machine):
    write_model(
        tmp_path / "models", "add",
        "max_batch: 8\nslo: 60s\ninputs: [{name: X, datatype: FP32, shape: [-1]}]\n"
        "outputs: [{name: Y, datatype: FP32, shape: [-1]}]\n",
        'def infer(inputs):\n    return {"Y": inputs["X"] + 1}\n',
    )  # fmt: skip
    with serving(tmp_path / "models", tmp_path / "log", "--executor", "cpu") as running:
        yield running


def start(server, kit, program):
    setting = f"ROOT, KIT, URL = {str(ROOT)!r}, {kit!r}, {getattr(server, kit)!r}\n"
    return subprocess.Popen(
        [sys.executable, "-c", setting + CLIENT + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run(server, kit, program):
    """What the program prints."""
    told, _ = start(server, kit, program).communicate(timeout=300)
    assert told.endswith("done\n"), told
    return told


@pytest.mark.parametrize("kit", KITS)
def test_inputs_are_read_from_devices_and_outputs_written_there(server, kit):
    run(server, kit, """
x = np.arange(12, dtype=np.float32).reshape(2, 6)
region("in", x)
region("out", nbytes=256, device=1)
assert known() == ["in", "out"], known()
infer("in", "out", [2, 6])
np.testing.assert_array_equal(shm.get_contents_as_numpy(memory["out"], np.float32, [2, 6]), x + 1)
infer("in", "out", [1, 3], at=12, to=128)  # parts of both
np.testing.assert_array_equal(shm.get_contents_as_numpy(memory["out"], np.float32, [35])[32:], [4, 5, 6])
large = np.ones((4, 1 << 18), np.float32)
region("large", large)
infer("large", "large", list(large.shape))
np.testing.assert_array_equal(shm.get_contents_as_numpy(memory["large"], np.float32, large.shape), large + 1)
client.unregister_cuda_shared_memory("in")
refused("no shared memory region", infer, "in", "out", [2, 6])
client.unregister_system_shared_memory()
assert known() == ["large", "out"], "of another kind"
client.unregister_cuda_shared_memory()
assert known() == []
print("done")
""")  # fmt: skip


@pytest.mark.parametrize("kit", KITS)
def test_what_is_beyond_a_region_or_its_memory_is_refused(server, kit):
    run(server, kit, """
region("r", np.zeros(64, np.float32))
refused("fewer than", region, "more", nbytes=256, told=1 << 40)
assert known() == ["r"]
refused("is registered already", region, "r", nbytes=256)
refused("not within region", infer, "r", "r", [1, 60], at=64)
refused("not within region", infer, "r", "r", [1, 60], to=64)
handle = shm.get_raw_handle(memory["r"])
refused("not valid", client.register_cuda_shared_memory, "s", handle, 0, 0)
refused("cuDeviceGet says CUDA_ERROR_INVALID_DEVICE", client.register_cuda_shared_memory, "s", handle, 7, 256)
import base64
refused("cuIpcOpenMemHandle", client.register_cuda_shared_memory, "s", base64.b64encode(bytes(64)), 0, 256)
infer("r", "r", [1, 60])
print("done")
""")  # fmt: skip


def test_the_server_outlives_a_client_that_ends_and_the_process_that_copies(server):
    ended = start(server, "http", """
region("gone", np.arange(4, dtype=np.float32))
region("other", np.arange(4, dtype=np.float32))
print("registered", flush=True)
input()
""")  # fmt: skip
    assert ended.stdout.readline() == "registered\n"
    (copying,) = [
        each for each in psutil.Process(server.process.pid).children(recursive=True)
        if any("libcuda.so.1" in mapping.path for mapping in each.memory_maps())
    ]  # fmt: skip
    assert not any("libcuda.so.1" in each.path for each in psutil.Process(server.process.pid).memory_maps())
    ended.kill()
    ended.communicate()
    copying.send_signal(signal.SIGKILL)
    copying.wait(60)
    run(server, "grpc", """
refused("register regions again", infer, "gone", "gone", [1, 4])
refused("register it again", infer, "other", "other", [1, 4])
client.unregister_cuda_shared_memory()
region("gone", np.arange(4, dtype=np.float32))
infer("gone", "gone", [1, 4])
np.testing.assert_array_equal(shm.get_contents_as_numpy(memory["gone"], np.float32, [4]), [1, 2, 3, 4])
print("done")
""")  # fmt: skip


def test_the_process_that_copies_ends_with_the_server(server):
    run(server, "http", 'region("r", nbytes=64)\nprint("done")\n')
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    server.process.wait()
    eventually(lambda: not any(each.is_running() and each.status() != "zombie" for each in children))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_has_no_device_memory_here(server):
    """A handle opens whatever the server's user has."""
    words = run(server, "http", """
region("r", nbytes=64)
print(shm.get_raw_handle(memory["r"]).decode())
print("done")
""")  # fmt: skip
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port))
    os.seteuid(65534)  # whose sockets are that user's
    try:
        connection.sock = socket.socket()
    finally:
        os.seteuid(0)
    with closing(connection):
        connection.sock.settimeout(60)
        connection.sock.connect((host, int(port)))
        handle = {"raw_handle": {"b64": words.splitlines()[-2]}, "device_id": 0, "byte_size": 64}
        connection.request("POST", "/v2/cudasharedmemory/region/s/register", json.dumps(handle))
        answer = connection.getresponse()
        assert "clients of the server's user" in json.loads(answer.read())["error"]
        assert answer.status == 501
